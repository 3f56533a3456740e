// y = x · Wᵀ for more than a few tokens and 4-bit W on Hopper: the copy engine brings tiles, warpgroups decode and multiply.
//
// A block multiplies 64 · WGS rows of W with TOKENS tokens, 128 columns a step: each of WGS warpgroups has one unit of 64
// rows, in registers where codes become 16-bit integers, and all tokens, in shared memory; two more warps start the copies.
// Warpgroups wait for copies but not for one another, so that one decodes while another's wgmma run. Blocks take turns at the
// tiles, and the copies run ahead from one into the next. Where too few are left for all blocks, SLICES of them, a cluster,
// each take a part of K of the same tile; the sums of a warpgroup meet those of the same rows in the other blocks in shared
// memory, in the order of the slices, and each block writes a share of the tokens.
//
// A norm between two products needs no kernel, as in linear_wide.cu: float16 holds what is not yet scaled down divided by 16.
//
// Codes minus zeros enter the products exactly; a group's sums are scaled in float32. The weights of `early` steps are on
// their way before wait_for_previous(). Epilogues stand in linear.cuh; each is compiled by itself, since code that is met
// for the first time comes slowly. N is a multiple of 16.
#ifndef WGS
#define WGS 2
#endif
#ifndef TOKENS
#define TOKENS 64
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef SLICES
#define SLICES 1
#endif
#ifndef EPILOGUE
#define EPILOGUE 0
#endif
#ifndef SPARE
#define SPARE 0
#endif
#define WARPS (4 * WGS + 4)
#include "cluster_barrier.cuh"
#include "packed4.cuh"
#include "packed_wide_epilogue.cuh"
#include "warpgroups.cuh"
#include "wgmma.cuh"

constexpr int MULTIPLIERS = 128 * WGS, THREADS = WARPS * 32, NT = TOKENS / 8;
constexpr int HALF_BYTES = TOKENS * 128, X_BYTES = 2 * HALF_BYTES;  // 64 columns of x, and a step's
constexpr int STAGE_BYTES = (X_BYTES + WGS * UNIT_BYTES + 1023) / 1024 * 1024;
constexpr int SHARE = (NT + SLICES - 1) / SLICES;           // eights of tokens that a block writes, at most
constexpr int EIGHT_BYTES = UNIT_ROWS * 8 * 4;              // sums of a warpgroup and eight tokens
constexpr int GROUP_BYTES = SHARE * (SLICES - 1) * EIGHT_BYTES, SUM_BYTES = WGS * GROUP_BYTES;  // from the other blocks
// Registers are shared out among the threads and SPARE more, which small kernels find beside a block; what the copying warps
// can do without goes to the others.
constexpr int COPYING = 32, LAUNCHED = 65536 / (THREADS + SPARE) / 8 * 8, SPARED = (LAUNCHED * (WGS + 1) - COPYING) / WGS / 8 * 8;
constexpr int REGISTERS = SPARED < 240 ? SPARED : 240;
// Steps of 16 columns that are decoded while as many are multiplied, and steps of 128 that the compiler sees at once. More
// leave fewer instructions, which take as long as the products of few tokens; those of more tokens wait for the decoding.
constexpr int SERIES = TOKENS <= 32 && GROUP >= 64 ? 4 : 2, SEEN = TOKENS == 16 && GROUP == 128 ? 4 : 1;

typedef float Sums[NT][4];  // of rows g and g + 8 (i / 2) of a warp's 16, and of tokens 8n + 2c + i % 2

// What a block has in shared memory, by address.
struct Shared {
    u32 ring, sums;
    u32 full, empty;     // barriers of a stage: its copies are here; all warps have read it
    u32 ready, read;     // of a warpgroup: the others' sums are here; they have read those of this block
    u32 factors;         // (MOST_TOKENS,) on the sums of each token, after a norm
    DEVICE Shared(u32 start) : ring((start + 1023) & ~1023u) {
        sums = ring + STAGES * STAGE_BYTES, full = sums + SUM_BYTES, empty = full + 8 * STAGES;
        ready = empty + 8 * STAGES, read = ready + 8 * WGS, factors = (read + 8 * WGS + 15) & ~15u;
    }
};

struct Work {
    int token_tiles, items, across, unit_rows;
    int whole;  // turns that each block takes alone, before clusters share those that are left
    DEVICE Work(const Problem& p, int whole)
        : token_tiles((p.m + TOKENS - 1) / TOKENS), across((p.k + TILE_COLUMNS - 1) / TILE_COLUMNS),
          unit_rows((p.n + UNIT_ROWS - 1) / UNIT_ROWS), whole(whole) {
        items = (unit_rows + WGS - 1) / WGS * token_tiles;
    }
};

// One turn of a block, if it has one: its first token and unit of rows, and its steps of K.
struct Turn {
    bool any, shared;
    int token, unit, first, past;
    DEVICE Turn(const Work& work, int turn) {
        const int block = blockIdx.x, blocks = gridDim.x, slice = block % SLICES;
        shared = SLICES > 1 && turn >= work.whole;
        int item = turn * blocks + block;
        if (shared) item = work.whole * blocks + (turn - work.whole) * (blocks / SLICES) + block / SLICES;
        any = item < work.items;
        const int rows = work.token_tiles == 1 ? item : item / work.token_tiles;
        token = (item - rows * work.token_tiles) * TOKENS, unit = rows * WGS;
        first = shared ? work.across * slice / SLICES : 0;
        past = shared ? work.across * (slice + 1) / SLICES : work.across;
    }
};

// For a whole warp, of which each lane brings one unit of a step's W.
DEVICE void copy_weights(const Work& work, const Shared& shared, const u8* packed, int fetched, int early) {
    const int lane = threadIdx.x % 32;
    int begun = 0;
    Slot<STAGES> slot;
#pragma unroll 1
    for (int i = 0;; i++) {
        const Turn turn(work, i);
        if (!turn.any) break;
        const int units = min(WGS, work.unit_rows - turn.unit);
        const u8* from = packed + (i64(turn.unit + lane) * work.across + turn.first) * UNIT_BYTES;
#pragma unroll 1
        for (int step = turn.first; step < turn.past; step++, slot.next(), from += UNIT_BYTES) {
            const u32 to = shared.ring + slot.at * STAGE_BYTES + X_BYTES, full = shared.full + slot.at * 8;
            if (begun++ == early) wait_for_previous();
            barrier_wait(shared.empty + slot.at * 8, slot.phase ^ 1);
            __syncwarp();  // a lane that looked later could miss a phase of the stage
            if (lane == 0) barrier_expect(full, units * UNIT_BYTES + fetched * 256);
            if (lane < units) copy_bytes(to + lane * UNIT_BYTES, from, UNIT_BYTES, full);
        }
    }
}
// For a whole warp, of which two lanes bring 64 columns each of a step's tokens.
DEVICE void copy_tokens(const Work& work, const Shared& shared, const TensorMap& x) {
    const int lane = threadIdx.x % 32;
    Slot<STAGES> slot;
#pragma unroll 1
    for (int i = 0;; i++) {
        const Turn turn(work, i);
        if (!turn.any) break;
#pragma unroll 1
        for (int step = turn.first; step < turn.past; step++, slot.next()) {
            const u32 to = shared.ring + slot.at * STAGE_BYTES + lane * HALF_BYTES;
            barrier_wait(shared.empty + slot.at * 8, slot.phase ^ 1);
            __syncwarp();
            if (lane < 2) copy_box(to, x, step * TILE_COLUMNS + lane * 64, turn.token, shared.full + slot.at * 8);
        }
    }
}

// Sums over the columns of one group, of which the first step is `first`. x: the stage's tokens. `meanwhile` runs while the
// tensor cores are busy, and may replace the codes.
template <class Meanwhile>
DEVICE void multiply_group(Sums& sum, const uint4 (&codes)[2], const Head& head, u64 x, int first,
                           const Meanwhile& meanwhile) {
    u32 a[GROUP_STEPS][4];
#pragma unroll
    for (int i = 0; i < GROUP_STEPS; i += SERIES) {
#pragma unroll
        for (int j = i; j < i + SERIES; j++) decode(word_of(codes[(first + j) / 4], first + j), head, a[j]);
        wgmma_begin();
#pragma unroll
        for (int j = i; j < i + SERIES; j++) {
            const int step = first + j;
            wgmma(sum, a[j], further(x, step / 4 * HALF_BYTES + step % 4 * 32), j != 0);
        }
        wgmma_end();
        if (i + SERIES < GROUP_STEPS) wgmma_wait<1>();  // else the compiler would decode all before the second series
    }
    meanwhile();
    wgmma_wait();
    wgmma_results(sum);
}

// The sums of a warpgroup over its steps of K; `ring` is where the ring's address points.
DEVICE void multiply(const Shared& shared, const u8* ring, const Turn& turn, Slot<STAGES>& slot, Sums& total) {
    const int lane = threadIdx.x % 32, tile_at = X_BYTES + threadIdx.x / 32 * TILE_BYTES;
    uint4 codes[2];
    Head next;  // of the next group
    auto read = [&] {
        barrier_wait(shared.full + slot.at * 8, slot.phase);
        const u8* tile = ring + slot.at * STAGE_BYTES + tile_at;
        next = read_head(tile, 0, lane / 4);
        for (int half = 0; half < 2; half++) codes[half] = read_codes(tile, half, lane);
    };
#pragma unroll
    for (int n = 0; n < NT; n++) total[n][0] = total[n][1] = total[n][2] = total[n][3] = 0.0f;
    read();
#pragma unroll SEEN
    for (int step = turn.first; step < turn.past; step++) {
        const int at = uniform(slot.at);
#pragma unroll
        for (int group = 0; group < TILE_COLUMNS / GROUP; group++) {
            Sums sum;
            const Head head = next;
            multiply_group(sum, codes, head, wgmma_operand(shared.ring + at * STAGE_BYTES, 0), group * GROUP_STEPS, [&] {
                if (group < TILE_COLUMNS / GROUP - 1) {
                    next = read_head(ring + at * STAGE_BYTES + tile_at, group + 1, lane / 4);
                    return;
                }
                slot.next();
                if (step + 1 < turn.past) read();
            });
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) total[n][i] += head.scale[i / 2] * sum[n][i];
        }
        if (lane == 0) barrier_arrive(shared.empty + at * 8);
    }
}

// Without slices: a few eights of tokens at a time, since each visit to memory takes long.
DEVICE void write_alone(const Writer& writer, int token, const Sums& total) {
    constexpr int AT_ONCE = NT % 4 ? 2 : 4;
#pragma unroll
    for (int first = 0; first < NT; first += AT_ONCE) {
        float residual[AT_ONCE][4];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) writer.load(token + (first + n) * 8, residual[n]);
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) writer.write(token + (first + n) * 8, total[first + n], residual[n]);
    }
}

// The sums of all slices meet: those of the n-th eight tokens are sent to block n % SLICES, which adds them up in the order of
// the slices and writes. `met`: how often they have met before; `again`: they will.
DEVICE void meet(const Shared& shared, const u8* ring, const Writer& writer, int token, int slice, u32 met, bool again,
                 const Sums& total) {
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, share = (NT - slice + SLICES - 1) / SLICES;
    const u32 ready = shared.ready + group * 8, read = shared.read + group * 8;
    const u32 own = group * GROUP_BYTES + thread * 16;
    if (thread == 0) barrier_expect(ready, share * (SLICES - 1) * EIGHT_BYTES);
    if (met) barrier_wait_for_cluster(read, met - 1 & 1);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int to = n % SLICES, place = n / SLICES * (SLICES - 1) + slice - (slice > to);
        if (to != slice)
            store_there(cluster_address(shared.sums + own + place * EIGHT_BYTES, to),
                        make_float4(total[n][0], total[n][1], total[n][2], total[n][3]), cluster_address(ready, to));
    }
    float residual[SHARE][4];
#pragma unroll
    for (int i = 0; i < SHARE; i++) writer.load(token + (i * SLICES + slice) * 8, residual[i]);
    barrier_wait_for_cluster(ready, met & 1);
    const u8* sent = ring + STAGES * STAGE_BYTES + own;
    float sums[SHARE][4];
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        float4 mine, part[SLICES];
#pragma unroll
        for (int s = 0; s < SLICES; s++) {
            const int n = min(i * SLICES + s, NT - 1);
            if (s == slice) mine = make_float4(total[n][0], total[n][1], total[n][2], total[n][3]);
        }
#pragma unroll
        for (int s = 0; s < SLICES; s++) {
            const int place = i * (SLICES - 1) + s - (s > slice);
            part[s] = mine;
            if (s != slice && i < share) part[s] = *reinterpret_cast<const float4*>(sent + place * EIGHT_BYTES);
        }
        sums[i][0] = part[0].x, sums[i][1] = part[0].y, sums[i][2] = part[0].z, sums[i][3] = part[0].w;
#pragma unroll
        for (int s = 1; s < SLICES; s++)
            sums[i][0] += part[s].x, sums[i][1] += part[s].y, sums[i][2] += part[s].z, sums[i][3] += part[s].w;
    }
    if (again) {
        meeting_wait(1 + group, 128);
        if (thread < SLICES && thread != slice) barrier_arrive_there(cluster_address(read, thread));
    }
#pragma unroll
    for (int i = 0; i < SHARE; i++)
        if (i < share) writer.write(token + (i * SLICES + slice) * 8, sums[i], residual[i]);
}

DEVICE void multiply_tiles(const Problem& p, const Norms& norms, const Work& work, const Shared& shared, u8* ring, int slice) {
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    auto has_rows = [&](const Turn& turn) { return turn.any && turn.unit + group < work.unit_rows; };
    float* factors = norms.squares ? reinterpret_cast<float*>(ring + (shared.factors - shared.ring)) : nullptr;
    if (factors) {
        find_factors<MULTIPLIERS>(p, norms, factors);
        meeting_wait(1 + WGS, MULTIPLIERS);
    }
    u32 met = 0;
    Slot<STAGES> slot;
#pragma unroll 1
    for (int i = 0;; i++) {
        const Turn turn(work, i);
        if (!turn.any) break;
        if (!has_rows(turn)) {  // others need the stages back
            for (int step = turn.first; step < turn.past; step++, slot.next()) {
                barrier_wait(shared.full + slot.at * 8, slot.phase);
                __syncwarp();
                if (lane == 0) barrier_arrive(shared.empty + slot.at * 8);
            }
            continue;
        }
        const Writer writer(p, norms, factors, turn.unit * UNIT_ROWS + threadIdx.x / 32 * TILE_ROWS);
        Sums total;
        multiply(shared, ring, turn, slot, total);
        if constexpr (SLICES > 1)
            if (turn.shared) {
                meet(shared, ring, writer, turn.token, slice, met++, has_rows(Turn(work, i + 1)), total);
                continue;
            }
        write_alone(writer, turn.token, total);
    }
}

extern "C" __global__ void __cluster_dims__(SLICES, 1, 1) __launch_bounds__(THREADS + SPARE, 1) packed_wide(
    const u8* packed,
    const __grid_constant__ TensorMap x,  // (M, K), boxes of `fetched`
    float alpha,
    const float* bias,  // (N,) or null
    void* out,
    const float* squares,  // (M, stride) or null: of x before its norm, in `parts` sums
    int parts, int stride, float eps,
    const float* norm,     // (N,) or null: weights of the norm that follows
    HALF* normed,          // (M, N)
    float* left,           // (M, left_stride)
    int left_stride, int m, int n, int k, int whole, int fetched, int early) {
    extern __shared__ __align__(16) u8 memory[];
    const Shared shared(shared_address(memory));
    u8* ring = memory + (shared.ring - shared_address(memory));
    const Norms norms{squares, parts, stride, eps, norm, normed, left, left_stride};
    Problem p{};
    p.alpha = alpha, p.bias = bias, p.out = out, p.m = m, p.n = n, p.k = k;
    const Work work(p, whole);
    const int slice = blockIdx.x % SLICES, copier = int(threadIdx.x / 32) - 4 * WGS;
    allow_next();
    if (threadIdx.x == MULTIPLIERS) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(shared.full + s * 8, 1);
            barrier_init(shared.empty + s * 8, 4 * WGS);
        }
        for (int i = 0; i < WGS; i++) {
            barrier_init(shared.ready + i * 8, 1);
            barrier_init(shared.read + i * 8, max(SLICES - 1, 1));
        }
        barriers_ready();
        prefetch_map(x);
    }
    __syncthreads();
    if constexpr (SLICES > 1) cluster_begin();
    if (copier >= 0) {
        leave_registers<COPYING>();
        if (copier == 0) copy_weights(work, shared, packed, fetched, early);
        if (copier == 1) {
            wait_for_previous();
            copy_tokens(work, shared, x);
        }
        __syncwarp();
        if constexpr (SLICES > 1) cluster_begun();
    } else {
        take_registers<REGISTERS>();
        if constexpr (SLICES > 1) cluster_begun();
        wait_for_previous();
        multiply_tiles(p, norms, work, shared, ring, slice);
    }
}
