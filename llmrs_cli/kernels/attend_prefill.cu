// Paged causal attention of sequences with many queries, on tensor cores, over any mix of chunk lengths.
//
// A block takes QUERIES consecutive queries of one sequence and one query head, and walks the pages that they see,
// oldest first, with a running maximum (online softmax). Each warp holds 16 · M_TILES queries: their scores and
// their sums live in registers; a page's keys and values pass through shared memory, copied a page ahead.
// The probabilities leave one mma as sums and enter the next as operands without leaving their registers.
//
// Tiles are numbered backwards so that the longest (latest) ones start first.
#include "attention.cuh"

#ifndef WARPS
#define WARPS 4
#endif
#ifndef M_TILES
#define M_TILES 1
#endif
#ifndef RESIDENT
#define RESIDENT 2
#endif
constexpr int TILE = 64;  // queries that the step's tiles are counted in
constexpr int QUERIES = WARPS * 16 * M_TILES;
static_assert(QUERIES % TILE == 0, "a block takes whole tiles");
constexpr int PAGE_BYTES = PAGE * ROW_BYTES;
constexpr int STAGES = LITTLE_SHARED && HEAD_DIM > 128 ? 1 : 2;  // of keys and values
constexpr int D_TILES = HEAD_DIM / 8;
constexpr int CHUNKS = HEAD_DIM / 8;  // 16-byte chunks of a row
constexpr bool QUERIES_SHARED = HEAD_DIM > 128;  // large heads leave no registers for the queries
#if __CUDA_ARCH__ >= 1000
constexpr int COPIES = 2;  // unrolled; more spill there
#else
constexpr int COPIES = 64;
#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32, RESIDENT) attend_prefill(
    const HALF* q,            // (T, Hq, D)
    const HALF* keys,         // (NB, Hkv, 64, D)
    const HALF* values,       // (NB, Hkv, 64, D)
    const int* tables,        // (rows, MB) pages of each row
    const int* rows,          // (S,) row of each sequence
    const int* contexts,      // (S,) tokens, this step's included
    const int* query_start,   // (S + 1,)
    const int* first_tile,    // (S + 1,) tiles of TILE queries of the prefill sequences before each one
    HALF* out,                // (T, Hq · D)
    float scale,              // on q · k, times log2 e
    int sequences, int table_width, int heads, int kv_heads, int window) {
    extern __shared__ __align__(16) u8 shared[];  // stages of keys and values; queries, if shared
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    // In this order: decode attention that runs beside this kernel counts on all before it being complete.
    wait_for_previous();
    allow_next();

    // ---- which tile ---------------------------------------------------------------------------------------
    const int tile = first_tile[sequences] - 1 - blockIdx.y, head = blockIdx.x;
    if (tile < 0) return;
    int sequence = 0, high = sequences;
    while (high - sequence > 1) {
        const int middle = (sequence + high) / 2;
        if (first_tile[middle] <= tile) sequence = middle; else high = middle;
    }
    const int own_tile = tile - first_tile[sequence], first = own_tile * TILE;  // of the sequence's queries
    if (own_tile % (QUERIES / TILE)) return;  // another block's second half
    const int start = query_start[sequence], count = query_start[sequence + 1] - start;
    const int context = contexts[sequence], before = context - count;
    const int kv_head = head / (heads / kv_heads);
    const int* table = tables + i64(rows[sequence]) * table_width;
    const int seen = min(before + first + QUERIES, context);  // keys that any of these queries sees
    const int pages = (seen + PAGE - 1) / PAGE;
    const int first_page = window > 0 ? max(before + first - window + 1, 0) / PAGE : 0;

    auto fetch = [&](int page, int stage) {
        if (page < pages) {
            const i64 base = (i64(table[page]) * kv_heads + kv_head) * PAGE * HEAD_DIM;
            const u32 to = shared_address(shared) + stage * 2 * PAGE_BYTES;
#pragma unroll COPIES
            for (int i = 0; i < PAGE * CHUNKS / (WARPS * 32); i++) {
                const int chunk = i * WARPS * 32 + threadIdx.x, row = chunk / CHUNKS, column = chunk % CHUNKS;
                const bool inside = page * PAGE + row < context;
                const u32 at = to + row * ROW_BYTES + column * 16;
                copy_async(at, keys + base + row * HEAD_DIM + column * 8, inside);
                copy_async(at + PAGE_BYTES, values + base + row * HEAD_DIM + column * 8, inside);
            }
        }
        copy_commit();
    };

    // ---- queries ------------------------------------------------------------------------------------------
    u32 held[M_TILES][QUERIES_SHARED ? 1 : STEPS][4];
    u8* mine = shared + 2 * STAGES * PAGE_BYTES + warp * M_TILES * 16 * ROW_BYTES;
    if constexpr (QUERIES_SHARED) {
        for (int chunk = lane; chunk < M_TILES * 16 * CHUNKS; chunk += 32) {
            const int r = chunk / CHUNKS, column = chunk % CHUNKS, row = first + warp * M_TILES * 16 + r;
            const HALF* from = q + (i64(start + row) * heads + head) * HEAD_DIM + column * 8;
            *reinterpret_cast<uint4*>(mine + r * ROW_BYTES + column * 16) =
                row < count ? load_uint4(from) : make_uint4(0, 0, 0, 0);
        }
        __syncwarp();
    } else {
#pragma unroll
        for (int t = 0; t < M_TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = first + (warp * M_TILES + t) * 16 + g + i % 2 * 8;
                const HALF* from = q + (i64(start + row) * heads + head) * HEAD_DIM + c * 2 + i / 2 * 8;
#pragma unroll
                for (int j = 0; j < STEPS; j++)
                    held[t][j][i] = row < count ? *reinterpret_cast<const u32*>(from + j * 16) : 0;
            }
    }
    auto query_at = [&](int t, int j, u32 (&a)[4]) {
        if constexpr (QUERIES_SHARED) {
            load_matrices(a, shared_address(mine) + (t * 16 + lane % 16) * ROW_BYTES + j * 32 + lane / 16 * 16);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = held[t][j][i];
        }
    };
    fetch(first_page, 0);

    float acc[M_TILES][D_TILES][4] = {};
    float top[M_TILES][2], mass[M_TILES][2];
#pragma unroll
    for (int t = 0; t < M_TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) top[t][r] = NEVER, mass[t][r] = 0.0f;
    const int own = before + first + warp * 16 * M_TILES;  // position of the warp's first query

#pragma unroll 1
    for (int page = first_page; page < pages; page++) {
        const int stage = (page - first_page) % STAGES;
        if (STAGES == 1 && page > first_page) {
            __syncthreads();  // nobody reads the page before any more
            fetch(page, 0);
        }
        copy_wait<0>();
        __syncthreads();
        if (STAGES > 1) fetch(page + 1, stage ^ 1);
        const u32 k_tile = shared_address(shared) + stage * 2 * PAGE_BYTES, v_tile = k_tile + PAGE_BYTES;
        const int key0 = page * PAGE;
        if (key0 > own + 16 * M_TILES - 1) continue;  // all keys lie after this warp's queries

        float score[M_TILES][PAGE / 8][4] = {};
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            u32 query[M_TILES][4];
#pragma unroll
            for (int t = 0; t < M_TILES; t++) query_at(t, j, query[t]);
#pragma unroll
            for (int n = 0; n < PAGE / 8; n += 2) {
                u32 k[4];
                load_matrices(
                    k, k_tile + (n * 8 + lane % 8 + lane / 16 * 8) * ROW_BYTES + j * 32 + lane / 8 % 2 * 16);
#pragma unroll
                for (int t = 0; t < M_TILES; t++) {
                    mma(score[t][n], query[t][0], query[t][1], query[t][2], query[t][3], k[0], k[1]);
                    mma(score[t][n + 1], query[t][0], query[t][1], query[t][2], query[t][3], k[2], k[3]);
                }
            }
        }

        const bool edge = key0 + PAGE > own + 1 || (window > 0 && key0 <= own + 16 * M_TILES - 1 - window);
#pragma unroll
        for (int t = 0; t < M_TILES; t++) {
            if (edge) {
#pragma unroll
                for (int n = 0; n < PAGE / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int key = key0 + n * 8 + c * 2 + i % 2, at = own + t * 16 + g + i / 2 * 8;
                        if (key > at || (window > 0 && key <= at - window)) score[t][n][i] = NEVER;
                    }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float peak = NEVER;
#pragma unroll
                for (int n = 0; n < PAGE / 8; n++)
                    peak = fmaxf(peak, fmaxf(score[t][n][r * 2], score[t][n][r * 2 + 1]));
                peak = fmaxf(peak, __shfl_xor_sync(FULL, peak, 1));
                peak = fmaxf(peak, __shfl_xor_sync(FULL, peak, 2));
                // While a row has seen no key its top stays NEVER; 0 then keeps its scores far below.
                peak = fmaxf(top[t][r], peak * scale);
                const float base = peak > 0.5f * NEVER * scale ? peak : 0.0f;
                const float shrink = exp2_fast(top[t][r] - base);
                top[t][r] = peak;
                mass[t][r] *= shrink;
#pragma unroll
                for (int j = 0; j < D_TILES; j++) acc[t][j][r * 2] *= shrink, acc[t][j][r * 2 + 1] *= shrink;
#pragma unroll
                for (int n = 0; n < PAGE / 8; n++)
#pragma unroll
                    for (int i = r * 2; i < r * 2 + 2; i++) {
                        score[t][n][i] = exp2_fast(score[t][n][i] * scale - base);
                        mass[t][r] += score[t][n][i];
                    }
            }
        }
#pragma unroll
        for (int n = 0; n < PAGE / 16; n++) {
            u32 p[M_TILES][4];
#pragma unroll
            for (int t = 0; t < M_TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    p[t][i] = pack2(score[t][2 * n + i / 2][i % 2 * 2], score[t][2 * n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (int j = 0; j < D_TILES; j += 2) {
                u32 v[4];
                load_matrices_transposed(v, v_tile + (n * 16 + lane % 16) * ROW_BYTES + j * 16 + lane / 16 * 16);
#pragma unroll
                for (int t = 0; t < M_TILES; t++) {
                    mma(acc[t][j], p[t][0], p[t][1], p[t][2], p[t][3], v[0], v[1]);
                    mma(acc[t][j + 1], p[t][0], p[t][1], p[t][2], p[t][3], v[2], v[3]);
                }
            }
        }
    }

    // ---- out ------------------------------------------------------------------------------------------------
#pragma unroll
    for (int t = 0; t < M_TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            mass[t][r] += __shfl_xor_sync(FULL, mass[t][r], 1);
            mass[t][r] += __shfl_xor_sync(FULL, mass[t][r], 2);
            const int row = first + (warp * M_TILES + t) * 16 + g + r * 8;
            if (row >= count) continue;
            HALF* to = out + (i64(start + row) * heads + head) * HEAD_DIM + c * 2;
            const float inverse = 1.0f / mass[t][r];
#pragma unroll
            for (int j = 0; j < D_TILES; j++)
                *reinterpret_cast<u32*>(to + j * 8) =
                    pack2(acc[t][j][r * 2] * inverse, acc[t][j][r * 2 + 1] * inverse);
        }
}
