// Decode attention of a few sequences on Hopper, where what counts is not bandwidth but how soon it is over.
//
// A cluster of BLOCKS blocks serves one key head of one sequence. Its warps take turns at the tiles of 16 tokens, so that
// a short context is read at once by many multiprocessors, and their sums meet in shared memory: those of a block first,
// then those of the blocks, each of which writes its share of the columns. The first tiles are on their way before
// wait_for_previous().
//
// It takes the qkv projection as it is: queries are normed and rotated on their way into registers; the warp that meets
// the newest token norms and rotates its key, and stores key and value in their page (rope_store.cu does the same for
// all tokens of a step, in a kernel of its own).
#include "attend_tile.cuh"
#include "cluster.cuh"
#include "rotation.cuh"

constexpr int WARPS = 4, BLOCKS = 8;
constexpr int STAGES = 2, STAGE_BYTES = 2 * TILE_BYTES;  // tiles of a warp on their way
constexpr int STRIDE = HEAD_DIM + 4;                     // of a partial row: D sums, then max and mass
constexpr int QUARTERS = HEAD_DIM / 4;                   // of a row, four columns each

// A row's sums over parts whose largest scores differ.
struct Meeting {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float mass = 0.0f;
    DEVICE void add(const float4& part, float part_mass, float weight) {
        sum.x += part.x * weight, sum.y += part.y * weight, sum.z += part.z * weight, sum.w += part.w * weight;
        mass += part_mass * weight;
    }
};

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(WARPS * 32) attend_few(
    const HALF* qkv,            // (T, (Hq + 2·Hkv)·D)
    HALF* keys,                 // (NB, Hkv, 64, D)
    HALF* values,               // (NB, Hkv, 64, D)
    const int* tables,          // (rows, MB) pages of each row
    const int* rows,            // (S,) row of each sequence
    const int* contexts,        // (S,) tokens, this step's included
    const int* query_start,     // (S + 1,)
    const int* first_page,      // (S + 2,) pages of the decode sequences before each one
    HALF* out,                  // (T, Hq · D)
    const float* rotations,     // (P, D) D/2 cosines, then D/2 sines
    const float* q_norm,        // (D,) or null
    const float* k_norm,        // (D,) or null
    float eps, float scale,     // scale: on q · k, times log2 e
    int table_width, int kv_heads, int group, int window) {
    extern __shared__ __align__(16) u8 shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int rank = blockIdx.x % BLOCKS, head = blockIdx.x / BLOCKS, sequence = blockIdx.y;
    u8* ring = shared + warp * STAGES * STAGE_BYTES;
    float* parts = reinterpret_cast<float*>(shared + WARPS * STAGES * STAGE_BYTES);  // [WARPS][G][STRIDE]
    float* met = parts + WARPS * group * STRIDE;                                     // [G][STRIDE]: of this block

    allow_next();
    // What describes the step was complete before its first kernel began.
    if (first_page[sequence] == first_page[sequence + 1]) {  // nothing but padding
        wait_for_previous();
        return;
    }
    const int context = contexts[sequence], token = query_start[sequence];
    const int oldest = window > 0 ? max(context - window, 0) : 0;
    const int* pages = tables + i64(rows[sequence]) * table_width;
    const int tiles = (context + 15) / 16, own = oldest / 16 + rank * WARPS + warp;

    auto place_of = [&](int tile) {
        return ((i64(pages[tile / 4]) * kv_heads + head) * PAGE + tile % 4 * 16) * HEAD_DIM;
    };
    auto fetch = [&](int stage, int tile) {
        if (tile < tiles) {
            const i64 place = place_of(tile) + lane * 8;
            constexpr int CHUNKS = HEAD_DIM / 8;
            const u32 to = shared_address(ring) + stage * STAGE_BYTES;
#pragma unroll
            for (int i = 0; i < 16 * CHUNKS / 32; i++) {
                const int chunk = i * 32 + lane, row = chunk / CHUNKS;
                const u32 at = to + row * ROW_BYTES + chunk % CHUNKS * 16;
                const bool inside = tile * 16 + row < context;
                copy_async(at, keys + place + i * 256, inside);
                copy_async(at + TILE_BYTES, values + place + i * 256, inside);
            }
        }
        copy_commit();
    };
#pragma unroll 1
    for (int s = 0; s < STAGES; s++) fetch(s, own + s * WARPS * BLOCKS);
    wait_for_previous();

    const HALF* projected = qkv + i64(token) * kv_heads * (group + 2) * HEAD_DIM;
    const float* turn = rotations + i64(context - 1) * HEAD_DIM;
    const bool adds = (tiles - 1 - oldest / 16) % (WARPS * BLOCKS) == rank * WARPS + warp;
    Rows seen;
    if (own < tiles) {
        Queries held;
        load_queries(held, projected + head * group * HEAD_DIM, group);
        Newest newest;
        if (adds) {
            const HALF* mine = projected + (kv_heads * group + head) * HEAD_DIM;
            newest.load(mine, mine + kv_heads * HEAD_DIM);
            newest.turn_key(turn, k_norm, eps);
        }
        rotate_queries(held, c, turn, q_norm, eps);
        int stage = 0;
#pragma unroll 1
        for (int tile = own; tile < tiles; tile += WARPS * BLOCKS) {
            copy_wait<STAGES - 1>();
            __syncwarp();
            if (adds && tile == tiles - 1) {
                u8* row = ring + stage * STAGE_BYTES + (context - 1) % 16 * ROW_BYTES;
                newest.store(row, row + TILE_BYTES);
                const i64 to = place_of(tile) + (context - 1) % 16 * HEAD_DIM;
                newest.store(keys + to, values + to);
                __syncwarp();
            }
            seen.add(held, 0, shared_address(ring) + stage * STAGE_BYTES, tile * 16, context, oldest, scale);
            __syncwarp();
            fetch(stage, tile + STAGES * WARPS * BLOCKS);
            stage ^= 1;
        }
        seen.join_lanes();
    }
    copy_wait<0>();

    // ---- the warps of a block meet ----------------------------------------------------------------------------------
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = g + r * 8;
        if (row >= group) continue;
        float* mine = parts + (warp * group + row) * STRIDE;
#pragma unroll
        for (int j = 0; j < D_TILES; j++)
            *reinterpret_cast<float2*>(mine + j * 8 + c * 2) = make_float2(seen.acc[j][r * 2], seen.acc[j][r * 2 + 1]);
        if (c == 0) *reinterpret_cast<float2*>(mine + HEAD_DIM) = make_float2(seen.top[r], seen.mass[r]);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < group * QUARTERS; i += WARPS * 32) {
        const int row = i / QUARTERS, column = i % QUARTERS * 4;
        float peak = NEVER;
#pragma unroll
        for (int w = 0; w < WARPS; w++) peak = fmaxf(peak, parts[(w * group + row) * STRIDE + HEAD_DIM]);
        Meeting all;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float* part = parts + (w * group + row) * STRIDE;
            all.add(*reinterpret_cast<const float4*>(part + column), part[HEAD_DIM + 1], exp2_fast(part[HEAD_DIM] - peak));
        }
        *reinterpret_cast<float4*>(met + row * STRIDE + column) = all.sum;
        if (column == 0) *reinterpret_cast<float2*>(met + row * STRIDE + HEAD_DIM) = make_float2(peak, all.mass);
    }

    // ---- the blocks meet: each writes its share of the columns -----------------------------------------------------
    cluster_sync();
    HALF* result = out + (i64(token) * kv_heads + head) * group * HEAD_DIM;
    constexpr int SHARE = QUARTERS / BLOCKS;
    static_assert(QUARTERS % BLOCKS == 0, "columns are shared out evenly");
#pragma unroll 1
    for (int i = threadIdx.x; i < group * SHARE; i += WARPS * 32) {
        const int row = i / SHARE, column = (rank * SHARE + i % SHARE) * 4;
        const u32 at = shared_address(met + row * STRIDE);
        float4 part[BLOCKS], stats[BLOCKS];
        float peak = NEVER;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            const u32 there = cluster_address(at, b);
            part[b] = load_cluster(there + column * 4), stats[b] = load_cluster(there + HEAD_DIM * 4);
            peak = fmaxf(peak, stats[b].x);
        }
        Meeting all;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) all.add(part[b], stats[b].y, exp2_fast(stats[b].x - peak));
        *reinterpret_cast<uint2*>(result + row * HEAD_DIM + column) =
            make_uint2(pack2(all.sum.x / all.mass, all.sum.y / all.mass), pack2(all.sum.z / all.mass, all.sum.w / all.mass));
    }
    cluster_sync();  // nobody leaves while another may read its sums
}
