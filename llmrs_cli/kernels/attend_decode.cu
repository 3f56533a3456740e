// Paged attention of sequences with one query: memory-bound, so every block reads the same number of pages.
//
// The step's work is one line of pages: sequence by sequence, key head by key head, page by page. The pages of a
// (sequence, head) pair are cut into chunks; block b takes the chunks that begin in its equal share of the line. A pair
// of one chunk is written out at once; of a longer pair each chunk leaves a partial result, and the block that arrives
// last merges them in order. The query heads of a key head are the rows of an mma (up to 16). Of a page, warp w handles
// tokens 16w … 16w + 15 through its own ring of copies, so warps meet only at the end of a chunk. Pages that this step
// does not write are copied before wait_for_previous().
//
// Beside prompts it is `late`: the kernel before it, attend_prefill, begins only after queries, keys and values are
// complete and lets this one begin only then, so there is nothing to wait for but, at the end, that it is over too. What
// this step has written is read from L2 (cp.async.cg, __ldcg), since L1 may hold it as it was in another layer.
#include "attend_tile.cuh"
#include "page_line.cuh"

constexpr int WARPS = 4;
constexpr int STAGES = (HEAD_DIM > 128 ? 2 : 3) - LITTLE_SHARED;
constexpr int AHEAD = STAGES > 1 ? STAGES - 1 : 1;  // pages in flight
constexpr int STAGE_BYTES = 2 * TILE_BYTES;
constexpr int OUT_STRIDE = HEAD_DIM + 4;          // of the block's merge buffer: D sums, then max and mass
constexpr int MAX_PARTS = 128;                    // chunks of a pair, at most

// out = Σ weight · part / Σ weight · mass over the parts of a pair; `weights` has room for parts · G floats.
DEVICE void merge_parts(const float* parts, int count, int group, float* weights, HALF* out) {
    const int lane = threadIdx.x % 32, size = group * OUT_STRIDE;
    for (int row = threadIdx.x / 32; row < group; row += WARPS) {
        const float* stats = parts + row * OUT_STRIDE + HEAD_DIM;
        float peak = NEVER, sum = 0.0f;
        for (int p = lane; p < count; p += 32) peak = fmaxf(peak, __ldcg(stats + i64(p) * size));
        peak = warp_max(peak);
        for (int p = lane; p < count; p += 32)
            sum += exp2_fast(__ldcg(stats + i64(p) * size) - peak) * __ldcg(stats + i64(p) * size + 1);
        sum = warp_sum(sum);
        for (int p = lane; p < count; p += 32)
            weights[p * group + row] = exp2_fast(__ldcg(stats + i64(p) * size) - peak) / sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < group * HEAD_DIM / 4; i += WARPS * 32) {
        const int row = i / (HEAD_DIM / 4), column = i % (HEAD_DIM / 4) * 4;
        const float4* from = reinterpret_cast<const float4*>(parts + row * OUT_STRIDE + column);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
        for (int p = 0; p < count; p++) {
            const float4 v = __ldcg(from + i64(p) * size / 4);
            const float w = weights[p * group + row];
            sum.x += v.x * w, sum.y += v.y * w, sum.z += v.z * w, sum.w += v.w * w;
        }
        *reinterpret_cast<uint2*>(out + row * HEAD_DIM + column) = make_uint2(pack2(sum.x, sum.y), pack2(sum.z, sum.w));
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) attend_decode(
    const HALF* q,              // (T, Hq, D)
    const HALF* keys,           // (NB, Hkv, 64, D)
    const HALF* values,         // (NB, Hkv, 64, D)
    const int* tables,          // (rows, MB) pages of each row
    const int* rows,            // (S,) row of each sequence
    const int* contexts,        // (S,) tokens, this step's included
    const int* query_start,     // (S + 1,)
    const int* first_page,      // (S + 2,) pages of the decode sequences before each one; then pages of a chunk
    HALF* out,                  // (T, Hq · D)
    float* partials,            // (blocks + S · Hkv + 1, G, D + 4)
    int* arrivals,              // (S · Hkv,) zero before and after
    float scale,                // on q · k, times log2 e
    int sequences, int table_width, int kv_heads, int group, int window, int late) {
    extern __shared__ __align__(16) u8 shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    u8* ring = shared + warp * STAGES * STAGE_BYTES;
    float* merged = reinterpret_cast<float*>(shared + WARPS * STAGES * STAGE_BYTES);  // [G][OUT_STRIDE], later [parts][G]
    u8* queries = reinterpret_cast<u8*>(merged + group * max(OUT_STRIDE, MAX_PARTS));  // [16][ROW_BYTES], if shared
    __shared__ int last_arrival;

    allow_next();
    // What describes the step was complete before its first kernel began.
    const Line line{first_page, kv_heads, sequences, first_page[sequences + 1]};
    const int total = first_page[sequences] * kv_heads;
    const int begin = line.snap(int(i64(total) * blockIdx.x / gridDim.x));
    const int end = line.snap(int(i64(total) * (blockIdx.x + 1) / gridDim.x));
    if (begin >= end) {
        wait_for_previous();  // the kernels after this one count on it
        return;
    }

    // ---- copies ---------------------------------------------------------------------------------------
    Cursor ahead = line.at(begin);
    int ahead_place = begin;
    int ahead_page = tables[i64(rows[ahead.sequence]) * table_width + ahead.page];
    auto fetch = [&](int stage) {
        if (ahead_place < end) {
            const int token = ahead.page * PAGE + warp * 16, context = contexts[ahead.sequence];
            const i64 base = ((i64(ahead_page) * kv_heads + ahead.head) * PAGE + warp * 16) * HEAD_DIM;
            const u32 to = shared_address(ring) + stage * STAGE_BYTES;
            constexpr int CHUNKS = HEAD_DIM / 8;
#pragma unroll
            for (int i = 0; i < 16 * CHUNKS / 32; i++) {
                const int chunk = i * 32 + lane, row = chunk / CHUNKS, column = chunk % CHUNKS;
                const u32 at = to + row * ROW_BYTES + column * 16;
                const bool inside = token + row < context;
                copy_async(at, keys + base + row * HEAD_DIM + column * 8, inside);
                copy_async(at + TILE_BYTES, values + base + row * HEAD_DIM + column * 8, inside);
            }
            if (++ahead_place < end) {
                line.next(ahead);
                ahead_page = tables[i64(rows[ahead.sequence]) * table_width + ahead.page];
            }
        }
        copy_commit();
    };
    int fetched = 0;
    while (fetched < AHEAD && ahead_place < end && ahead.page < (contexts[ahead.sequence] - 1) / PAGE)
        fetch(fetched++);
    if (!late) wait_for_previous();
    while (fetched < AHEAD) fetch(fetched++);

    // ---- one chunk after the other ------------------------------------------------------------------------
    Cursor here = line.at(begin);
    int stage = 0;
    for (int place = begin; place < end;) {
        const int sequence = here.sequence, head = here.head, pages = here.pages, from = here.page;
        const int upto = min(pages, from + line.chunk), chunk_begin = place;
        const int context = contexts[sequence], token = query_start[sequence];
        const int oldest = window > 0 ? max(context - window, 0) : 0;

        const HALF* q_rows = q + (i64(token) * kv_heads + head) * group * HEAD_DIM;
        Queries held;
        if constexpr (QUERIES_SHARED) {
            for (int i = threadIdx.x; i < 16 * HEAD_DIM / 8; i += WARPS * 32) {
                const int row = i / (HEAD_DIM / 8), column = i % (HEAD_DIM / 8);
                *reinterpret_cast<uint4*>(queries + row * ROW_BYTES + column * 16) =
                    row < group ? __ldcg(reinterpret_cast<const uint4*>(q_rows + row * HEAD_DIM) + column) : make_uint4(0, 0, 0, 0);
            }
            __syncthreads();
        } else {
            load_queries(held, q_rows, group);
        }

        Rows seen;
#pragma unroll 1
        for (int page = from; page < upto; page++, place++) {
            copy_wait<AHEAD - 1>();
            __syncwarp();
            const u32 tile = shared_address(ring) + stage * STAGE_BYTES;
            const int first = page * PAGE + warp * 16;
            if (first < context && first + 16 > oldest)
                seen.add(held, shared_address(queries), tile, first, context, oldest, scale);
            __syncwarp();
            const int freed = stage == 0 ? STAGES - 1 : stage - 1;
            fetch(freed);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        here = Cursor{sequence, head, upto - 1, pages};
        if (place < end) line.next(here);

        // ---- the four warps meet, in order ----------------------------------------------------------------
        seen.join_lanes();
        float (&acc)[D_TILES][4] = seen.acc;
        float (&top)[2] = seen.top, (&mass)[2] = seen.mass;
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            if (w == warp) {
                float total_mass[2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int row = g + r * 8;
                    if (row < group) {
                        float* into = merged + row * OUT_STRIDE;
                        const float before = w ? into[HEAD_DIM] : NEVER, peak = fmaxf(before, top[r]);
                        const float keep = exp2_fast(before - peak), add = exp2_fast(top[r] - peak);
                        const float old_mass = w ? into[HEAD_DIM + 1] : 0.0f;
#pragma unroll
                        for (int j = 0; j < D_TILES; j++) {
                            float2* at = reinterpret_cast<float2*>(into + j * 8 + c * 2);
                            const float2 old = w ? *at : make_float2(0.0f, 0.0f);
                            *at = make_float2(old.x * keep + acc[j][r * 2] * add,
                                              old.y * keep + acc[j][r * 2 + 1] * add);
                        }
                        total_mass[r] = old_mass * keep + mass[r] * add;
                        top[r] = peak;
                    }
                }
                __syncwarp();
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (c == 0 && g + r * 8 < group) {
                        merged[(g + r * 8) * OUT_STRIDE + HEAD_DIM] = top[r];
                        merged[(g + r * 8) * OUT_STRIDE + HEAD_DIM + 1] = total_mass[r];
                    }
            }
            __syncthreads();
        }

        // ---- whole pairs leave; chunks wait for the others of their pair --------------------------------------
        HALF* result = out + (i64(token) * kv_heads + head) * group * HEAD_DIM;
        if (upto - from == pages) {
            for (int i = threadIdx.x; i < group * HEAD_DIM; i += WARPS * 32) {
                const float* row = merged + i / HEAD_DIM * OUT_STRIDE;
                result[i] = to_half(row[i % HEAD_DIM] / row[HEAD_DIM + 1]);
            }
        } else {
            // Slots of one pair follow each other, and no two pairs share one.
            const int pair = sequence * kv_heads + head, size = group * OUT_STRIDE;
            float* mine = partials + i64(chunk_begin / line.chunk + pair) * size;
            for (int i = threadIdx.x; i < size; i += WARPS * 32) mine[i] = merged[i];
            __threadfence();
            __syncthreads();
            const int parts = (pages + line.chunk - 1) / line.chunk;
            if (threadIdx.x == 0) last_arrival = atomicAdd(&arrivals[pair], 1) == parts - 1;
            __syncthreads();
            if (last_arrival) {
                __threadfence();
                const float* first = mine - i64(from / line.chunk) * size;
                merge_parts(first, parts, group, merged, result);
                if (threadIdx.x == 0) arrivals[pair] = 0;
            }
        }
        __syncthreads();
    }
    copy_wait<0>();
    if (late) wait_for_previous();
}
