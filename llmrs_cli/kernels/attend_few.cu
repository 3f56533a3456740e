// Decode attention of as many sequences as the GPU can take up at once: what counts is how soon it is over.
//
// BLOCKS blocks serve one key head of one sequence, a cluster where they are several (Hopper). Their warps take turns at
// the tiles of 16 tokens, so that a short context is read at once by many warps, and their sums meet in shared memory:
// those of a block first, which sends each block of the cluster its share of the columns, to be summed and written. The
// first tiles are on their way before wait_for_previous(). Nothing evens out contexts of different lengths (attend_decode.cu does).
//
// It takes the qkv projection as it is: queries are normed and rotated on their way into registers; the warp that meets
// the newest token norms and rotates its key, and stores key and value in their page (rope_store.cu does the same for
// all tokens of a step, in a kernel of its own).
//
// Beside prompts it is `late`: the kernel before it, attend_prefill, begins only after the projection is complete and
// lets this one begin only then, so there is nothing to wait for but, at the end, that it is over too. Without the wait
// a line in L1 may be of another layer or step: all that changes while a model runs is read from L2 (cp.async.cg, __ldcg).
#include "attend_tile.cuh"
#include "cluster_barrier.cuh"
#include "rotation.cuh"

#ifndef WARPS
#define WARPS 4
#endif
#ifndef STAGES
#define STAGES 2  // tiles of a warp on their way
#endif
constexpr int STAGE_BYTES = 2 * TILE_BYTES;
constexpr int STRIDE = HEAD_DIM + 4;     // of a partial row: D sums, then max and mass
constexpr int QUARTERS = HEAD_DIM / 4;   // of a row, four columns each
static_assert(STAGES >= 2 && 16 * STRIDE * 4 <= STAGE_BYTES, "sums fit where tiles were");

struct Step {
    const HALF* qkv;            // (T, (Hq + 2·Hkv)·D)
    HALF *keys, *values;        // (NB, Hkv, 64, D)
    const int* tables;          // (rows, MB) pages of each row
    const int* rows;            // (S,) row of each sequence
    const int* contexts;        // (S,) tokens, this step's included
    const int* query_start;     // (S + 1,)
    const int* first_page;      // (S + 2,) pages of the decode sequences before each one
    HALF* out;                  // (T, Hq · D)
    const float* rotations;     // (P, D) D/2 cosines, then D/2 sines
    const float *q_norm, *k_norm;  // (D,) or null
    float eps, scale;           // scale: on q · k, times log2 e
    int table_width, kv_heads, group, window, late;
};

// A row's sums over parts whose largest scores differ.
struct Meeting {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float mass = 0.0f;
    DEVICE void add(const float4& part, float part_mass, float weight) {
        sum.x += part.x * weight, sum.y += part.y * weight, sum.z += part.z * weight, sum.w += part.w * weight;
        mass += part_mass * weight;
    }
    DEVICE void write(HALF* to) const {
        *reinterpret_cast<uint2*>(to) =
            make_uint2(pack2(sum.x / mass, sum.y / mass), pack2(sum.z / mass, sum.w / mass));
    }
};

template <int BLOCKS> DEVICE void attend(const Step& p) {
    extern __shared__ __align__(16) u8 shared[];  // [WARPS][STAGES] tiles, then sums of each warp at its first; `sent`
    constexpr int SHARE = QUARTERS / BLOCKS;      // of the columns, that a block writes; sent with its row's max and mass
    constexpr int SENT = (SHARE + 1) * 16;        // bytes of a row
    static_assert(QUARTERS % BLOCKS == 0, "columns are shared out evenly");
    u8* sent = shared + WARPS * STAGES * STAGE_BYTES;  // [BLOCKS][G] rows
    const u32 all_sent = shared_address(sent + BLOCKS * p.group * SENT);  // a barrier
    constexpr int TURN = WARPS * BLOCKS;          // tiles from one of a warp to its next
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int rank = blockIdx.x % BLOCKS, head = blockIdx.x / BLOCKS, sequence = blockIdx.y, group = p.group;
    u8* ring = shared + warp * STAGES * STAGE_BYTES;

    allow_next();
    // What describes the step was complete before its first kernel began.
    const int before = __ldcg(p.first_page + sequence), after = __ldcg(p.first_page + sequence + 1);
    const int context = __ldcg(p.contexts + sequence), token = __ldcg(p.query_start + sequence);
    const int* pages = p.tables + i64(__ldcg(p.rows + sequence)) * p.table_width;
    if (before == after) return;  // padding or a prompt: that the kernel before is over is known by those that decode
    if constexpr (BLOCKS > 1) {
        if (threadIdx.x == 0) {
            barrier_init(all_sent, 1);
            barriers_ready();
        }
        cluster_begin();
    }
    const int oldest = p.window > 0 ? max(context - p.window, 0) : 0;
    const int tiles = (context + 15) / 16, own = oldest / 16 + rank * WARPS + warp;

    int ahead = own, held_page = 0, page_lane = 32;  // the next tile to copy; pages of the next ones, one a lane
    auto place_of = [&](int tile, int from) {
        const i64 page = __shfl_sync(FULL, held_page, from);
        return ((page * p.kv_heads + head) * PAGE + tile % 4 * 16) * HEAD_DIM;
    };
    auto fetch = [&](int stage) {
        if (ahead < tiles) {
            if (page_lane == 32) {
                const int tile = ahead + lane * TURN;
                held_page = tile < tiles ? __ldcg(pages + tile / 4) : 0;
                page_lane = 0;
            }
            const i64 place = place_of(ahead, page_lane++) + lane * 8;
            constexpr int CHUNKS = HEAD_DIM / 8;
            const u32 to = shared_address(ring) + stage * STAGE_BYTES;
#pragma unroll
            for (int i = 0; i < 16 * CHUNKS / 32; i++) {
                const int chunk = i * 32 + lane, row = chunk / CHUNKS;
                const u32 at = to + row * ROW_BYTES + chunk % CHUNKS * 16;
                const bool inside = ahead * 16 + row < context;
                copy_async(at, p.keys + place + i * 256, inside);
                copy_async(at + TILE_BYTES, p.values + place + i * 256, inside);
            }
            ahead += TURN;
        }
        copy_commit();
    };
#pragma unroll 1
    for (int s = 0; s < STAGES; s++) fetch(s);
    const float* turn = p.rotations + i64(context - 1) * HEAD_DIM;
    if (lane * 32 < HEAD_DIM) {
        touch(turn + lane * 32);
        if (p.q_norm) touch(p.q_norm + lane * 32);
        if (p.k_norm) touch(p.k_norm + lane * 32);
    }
    if (!p.late) wait_for_previous();

    const HALF* projected = p.qkv + i64(token) * p.kv_heads * (group + 2) * HEAD_DIM;
    const bool adds = (tiles - 1 - oldest / 16) % TURN == rank * WARPS + warp;
    Rows seen;
    if (own < tiles) {
        Queries held;
        load_queries(held, projected + head * group * HEAD_DIM, group);
        Newest newest;
        if (adds) {
            const HALF* mine = projected + (p.kv_heads * group + head) * HEAD_DIM;
            newest.load(mine, mine + p.kv_heads * HEAD_DIM);
            newest.turn_key(turn, p.k_norm, p.eps);
        }
        rotate_queries(held, c, turn, p.q_norm, p.eps);
        int stage = 0;
#pragma unroll 1
        for (int tile = own; tile < tiles; tile += TURN) {
            copy_wait<STAGES - 1>();
            __syncwarp();
            if (adds && tile == tiles - 1) {
                u8* row = ring + stage * STAGE_BYTES + (context - 1) % 16 * ROW_BYTES;
                newest.store(row, row + TILE_BYTES);
                const i64 to = place_of(tile, page_lane - 1) + (context - 1) % 16 * HEAD_DIM;  // it was the last to copy
                newest.store(p.keys + to, p.values + to);
                __syncwarp();
            }
            seen.add(held, 0, shared_address(ring) + stage * STAGE_BYTES, tile * 16, context, oldest, p.scale);
            __syncwarp();
            fetch(stage);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        seen.join_lanes();
    }
    copy_wait<0>();

    // ---- the warps of a block meet ----------------------------------------------------------------------------------
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = g + r * 8;
        if (row >= group) continue;
        float* mine = reinterpret_cast<float*>(ring) + row * STRIDE;
#pragma unroll
        for (int j = 0; j < D_TILES; j++)
            *reinterpret_cast<float2*>(mine + j * 8 + c * 2) = make_float2(seen.acc[j][r * 2], seen.acc[j][r * 2 + 1]);
        if (c == 0) *reinterpret_cast<float2*>(mine + HEAD_DIM) = make_float2(seen.top[r], seen.mass[r]);
    }
    __syncthreads();
    if constexpr (BLOCKS > 1) {
        // What others send may come before: the barrier cannot leave its phase until it is told.
        if (threadIdx.x == 0) barrier_expect(all_sent, BLOCKS * group * SENT);
        cluster_begun();
    }
    HALF* result = p.out + (i64(token) * p.kv_heads + head) * group * HEAD_DIM;
#pragma unroll 1
    for (int i = threadIdx.x; i < group * QUARTERS; i += WARPS * 32) {
        const int row = i / QUARTERS, column = i % QUARTERS * 4;
        const u8* part = shared + row * STRIDE * 4;
        float peak = NEVER;
        float2 stats[WARPS];  // max, mass
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            stats[w] = *reinterpret_cast<const float2*>(part + w * STAGES * STAGE_BYTES + HEAD_DIM * 4);
            peak = fmaxf(peak, stats[w].x);
        }
        Meeting all;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            all.add(*reinterpret_cast<const float4*>(part + w * STAGES * STAGE_BYTES + column * 4), stats[w].y,
                    exp2_fast(stats[w].x - peak));
        if constexpr (BLOCKS == 1) {
            all.write(result + row * HEAD_DIM + column);
        } else {
            const int quarter = i % QUARTERS, to = quarter / SHARE;
            const u32 at = cluster_address(shared_address(sent + (rank * group + row) * SENT), to);
            const u32 arrival = cluster_address(all_sent, to);
            store_there(at + quarter % SHARE * 16, all.sum, arrival);
            if (quarter % SHARE == 0) store_there(at + SHARE * 16, make_float4(peak, all.mass, 0.0f, 0.0f), arrival);
        }
    }

    // ---- the blocks meet: each writes its share of the columns -----------------------------------------------------
    if constexpr (BLOCKS > 1) {
        barrier_wait_for_cluster(all_sent, 0);
#pragma unroll 1
        for (int i = threadIdx.x; i < group * SHARE; i += WARPS * 32) {
            const int row = i / SHARE, column = (rank * SHARE + i % SHARE) * 4;
            float4 part[BLOCKS], stats[BLOCKS];
            float peak = NEVER;
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const float4* from = reinterpret_cast<const float4*>(sent + (b * group + row) * SENT);
                part[b] = from[i % SHARE], stats[b] = from[SHARE];
                peak = fmaxf(peak, stats[b].x);
            }
            Meeting all;
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) all.add(part[b], stats[b].y, exp2_fast(stats[b].x - peak));
            all.write(result + row * HEAD_DIM + column);
        }
    }
    if (p.late) wait_for_previous();  // the kernels after this one count on it
}

// Of so many registers a multiprocessor has enough for two blocks beside one of attend_prefill.
#define KERNEL(NAME, BLOCKS, CLUSTER)                                                                                 \
    extern "C" __global__ void CLUSTER __maxnreg__(144) NAME(                                                         \
        const HALF* qkv, HALF* keys, HALF* values, const int* tables, const int* rows, const int* contexts,           \
        const int* query_start, const int* first_page, HALF* out, const float* rotations, const float* q_norm,        \
        const float* k_norm, float eps, float scale, int table_width, int kv_heads, int group, int window,            \
        int late) {                                                                                                   \
        attend<BLOCKS>(Step{qkv, keys, values, tables, rows, contexts, query_start, first_page, out, rotations,       \
                            q_norm, k_norm, eps, scale, table_width, kv_heads, group, window, late});                 \
    }
KERNEL(attend_few_1, 1, )
#if __CUDA_ARCH_FEAT_SM90_ALL
KERNEL(attend_few_2, 2, __cluster_dims__(2, 1, 1))
KERNEL(attend_few_4, 4, __cluster_dims__(4, 1, 1))
KERNEL(attend_few_8, 8, __cluster_dims__(8, 1, 1))
#endif
