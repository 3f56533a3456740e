// y = x · Wᵀ for many tokens on Hopper: the copy engine brings tiles and takes results away, wgmma multiplies.
//
// A block multiplies a tile of TOKENS = 64 · DEEP · GROUPS tokens with ROWS rows of W, 64 columns a step: each of GROUPS
// warpgroups has DEEP times 64 tokens and all rows, one more starts the copies. Both operands come through a ring of STAGES
// steps. A wgmma reads shared memory at nearly the rate at which it can be read while copies fill it, so tiles are large; and
// L2 gives less than the blocks of a grid would read, so two blocks, a cluster, share one operand of their tiles (PAIR): each
// brings a half of it to both.
//
// The grid fills the GPU once and takes turns at the tiles; the copies run ahead from one into the next. Both blocks of a
// cluster have the same number of turns and steps: where there is no tile for one, the copy engine brings zeros and writes
// nothing. A block brings a step when all warpgroups of both have left its stage, and ends when they have left all.
// Results leave through shared memory (many_epilogue.cuh) while the next tile is multiplied; with LAG the warpgroups are so
// many steps apart that one multiplies while another writes.
//
// A band of token tiles is multiplied with all rows before the next, token by token of the band, so that what blocks read at
// the same time is little. Weights of the first steps are on their way before wait_for_previous(). A token's sums are made
// in the order of K, whatever the tile. Design after the warp-specialised kernels of CUTLASS 3 (Thakkar et al., 2023).
#ifndef GROUPS
#define GROUPS 2
#endif
#ifndef DEEP
#define DEEP 1
#endif
#ifndef ROWS
#define ROWS 256
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef ROOM
#define ROOM 4096
#endif
#ifndef PAIR
#define PAIR 1
#endif
#ifndef LAG
#define LAG 1
#endif
#ifndef EPILOGUE
#define EPILOGUE 0
#endif
#define WARPS (4 * GROUPS + 4)
#define CLUSTER (PAIR ? 2 : 1)
#include "cluster_barrier.cuh"
#include "many_epilogue.cuh"
#include "warpgroups.cuh"
#include "wgmma_shared.cuh"

enum Pair { ALONE, SAME_ROWS, SAME_TOKENS };  // what two blocks share

constexpr int TOKENS = 64 * DEEP * GROUPS, COLUMNS = 64, MULTIPLIERS = 128 * GROUPS;
constexpr int X_BYTES = TOKENS * 128, W_BYTES = ROWS * 128, STAGE_BYTES = X_BYTES + W_BYTES;
constexpr int TOGETHER_TOKENS = PAIR == SAME_ROWS ? 2 * TOKENS : TOKENS;  // of a cluster's tiles
constexpr int TOGETHER_ROWS = PAIR == SAME_TOKENS ? 2 * ROWS : ROWS;
// What the copying warps can spare, shared out.
constexpr int COPYING = 32, LAUNCHED = 65536 / (WARPS * 32) / 8 * 8;
constexpr int SPARED = (LAUNCHED * (GROUPS + 1) - COPYING) / GROUPS / 8 * 8;
constexpr int REGISTERS = SPARED < 240 ? SPARED : 240;
static_assert(LAG < STAGES, "a warpgroup that is ahead needs a stage that the others have not left");

// Tiles of a cluster, in the order in which they are taken: by token inside of a band, then by row, then by band.
struct Work {
    int down, across, band, items, steps;
    DEVICE Work(int m, int n, int k, int band)
        : down((m + TOGETHER_TOKENS - 1) / TOGETHER_TOKENS), across((n + TOGETHER_ROWS - 1) / TOGETHER_ROWS), band(band),
          items(down * across), steps((k + COLUMNS - 1) / COLUMNS) {}
};

// One turn of a block: its first token and row.
struct Turn {
    int token, row;
    DEVICE Turn(const Work& work, int item) {
        const int rank = blockIdx.x % CLUSTER, first = item / (work.band * work.across) * work.band;
        const int wide = min(work.band, work.down - first), left = item - first * work.across, rows = left / wide;
        token = (first + left - rows * wide) * TOGETHER_TOKENS + (PAIR == SAME_ROWS ? rank * TOKENS : 0);
        row = rows * TOGETHER_ROWS + (PAIR == SAME_TOKENS ? rank * ROWS : 0);
    }
};

// `rows` rows of an operand to both blocks of a cluster, of which this one brings a half, or to this one alone.
template <bool BOTH> DEVICE void bring(u32 to, const TensorMap& map, int column, int row, int rows, u32 barrier) {
    const int own = BOTH ? blockIdx.x % 2 * (rows / 2) : 0;
    if constexpr (BOTH) copy_box_to_pair(to + own * 128, map, column, row + own, barrier);
    else copy_box(to, map, column, row, barrier);
}

// The copies of a block.
struct Copies {
    const TensorMap &weights, &x;
    u32 ring, full, empty;
    DEVICE void bring_weights(const Turn& turn, int step, int at) const {
        barrier_expect(full + at * 8, STAGE_BYTES);  // the other block's half is among them
        bring<PAIR == SAME_ROWS>(ring + at * STAGE_BYTES + X_BYTES, weights, step * COLUMNS, turn.row, ROWS, full + at * 8);
    }
    DEVICE void bring_tokens(const Turn& turn, int step, int at) const {
        bring<PAIR == SAME_TOKENS>(ring + at * STAGE_BYTES, x, step * COLUMNS, turn.token, TOKENS, full + at * 8);
    }
};

DEVICE void copy_tiles(const Work& work, const Copies& copies) {
    int item = blockIdx.x / CLUSTER;
    if (item >= work.items) return;
    Slot<STAGES> slot;
    int step = min(STAGES, work.steps);
    {
        const Turn turn(work, item);
        for (int s = 0; s < step; s++) copies.bring_weights(turn, s, s);
        wait_for_previous();
        for (int s = 0; s < step; s++, slot.next()) copies.bring_tokens(turn, s, s);
    }
#pragma unroll 1
    for (; item < work.items; item += gridDim.x / CLUSTER, step = 0) {
        const Turn turn(work, item);
#pragma unroll 1
        for (; step < work.steps; step++, slot.next()) {
            barrier_wait(copies.empty + slot.at * 8, slot.phase ^ 1);
            copies.bring_weights(turn, step, slot.at);
            copies.bring_tokens(turn, step, slot.at);
        }
    }
    // Nobody sends to this block any more, or is told that it has left a stage here, once every stage is left.
    for (int s = 0; s < STAGES; s++, slot.next()) barrier_wait(copies.empty + slot.at * 8, slot.phase ^ 1);
}

typedef float Sums[DEEP][ROWS / 8][4];

// What a multiplying warpgroup knows of the ring. `group`: which one it is.
struct Ring {
    u32 bytes, full, empty;
    int group;
    // All threads of the warpgroup are done with a stage, for whoever brings something to it.
    DEVICE void release(int at) const {
        const int thread = threadIdx.x % 128;
        if constexpr (CLUSTER == 1) {
            if (thread == 0) barrier_arrive(empty + at * 8);
        } else if (thread < CLUSTER) {
            barrier_leave_there(cluster_address(empty + at * 8, thread));
        }
    }
};

// After the step `pass` the next warpgroup may begin.
DEVICE void multiply(const Ring& ring, int steps, int pass, Slot<STAGES>& slot, Sums& d) {
    const u32 xs = ring.bytes + ring.group * DEEP * 64 * 128, ws = ring.bytes + X_BYTES;
    int before = -1;
#pragma unroll 1
    for (int step = 0; step < steps; step++, slot.next()) {
        barrier_wait(ring.full + slot.at * 8, slot.phase);
        const u32 at = slot.at * STAGE_BYTES;
#pragma unroll
        for (int e = 0; e < DEEP; e++) wgmma_begin(d[e]);
#pragma unroll
        for (int i = 0; i < COLUMNS / 16; i++)
#pragma unroll
            for (int e = 0; e < DEEP; e++)
                wgmma(d[e], wgmma_operand(xs + at + e * 64 * 128, i), wgmma_operand(ws + at, i), step > 0 || i > 0);
        wgmma_end();
        if (before >= 0) {  // the step before is done with its stage
            wgmma_wait<1>(d[0]);
            if constexpr (DEEP > 1) touch(d[DEEP - 1]);
            ring.release(before);
        }
        if (LAG && step == pass) meeting_arrive(ring.group + 1, 256);
        before = slot.at;
    }
    wgmma_wait<0>(d[0]);
    if constexpr (DEEP > 1) touch(d[DEEP - 1]);
    ring.release(before);
}

DEVICE void multiply_tiles(const Work& work, const Ring& ring, Writer& writer) {
    Sums d;
    Slot<STAGES> slot;
    int item = blockIdx.x / CLUSTER, pass = ring.group < GROUPS - 1 ? min(LAG, work.steps - 1) : -1;
    if (LAG && ring.group > 0 && item < work.items) meeting_wait(ring.group, 256);
#pragma unroll 1
    for (; item < work.items; item += gridDim.x / CLUSTER, pass = -1) {
        const Turn turn(work, item);
        multiply(ring, work.steps, pass, slot, d);
#pragma unroll
        for (int e = 0; e < DEEP; e++)
            writer.write(d[e], turn.token + (ring.group * DEEP + e) * 64 + threadIdx.x / 32 % 4 * 16, turn.row);
    }
    writer.finish();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WARPS * 32, 1) linear_many(
    const __grid_constant__ TensorMap weights,  // (N, K), boxes of the rows that a block brings
    const __grid_constant__ TensorMap x,        // (M, K), boxes of the tokens that a block brings
    const __grid_constant__ TensorMap out,      // what is left of (M, N), boxes of 16 tokens and WIDTH columns
    float alpha,
    const float* bias,  // (N,) or null
    int m, int n, int k,
    int band) {  // of tokens: tiles of a cluster
    extern __shared__ __align__(16) u8 shared[];
    u8* ring = shared + ((1024 - shared_address(shared) % 1024) & 1023);
    u8* rooms = ring + STAGES * STAGE_BYTES;
    const u32 full = shared_address(rooms) + 4 * GROUPS * ROOM, empty = full + 8 * STAGES;  // barriers of a stage
    const Work work(m, n, k, band);
    allow_next();
    if (threadIdx.x == MULTIPLIERS) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, GROUPS * CLUSTER);
        }
        barriers_ready();
        prefetch_map(weights);
        prefetch_map(x);
        prefetch_map(out);
    }
    __syncthreads();
    if constexpr (CLUSTER > 1) cluster_begin(), cluster_begun();
    if (threadIdx.x >= MULTIPLIERS) {
        leave_registers<COPYING>();
        if (threadIdx.x == MULTIPLIERS) copy_tiles(work, Copies{weights, x, shared_address(ring), full, empty});
    } else {
        take_registers<REGISTERS>();
        const int group = __shfl_sync(FULL, threadIdx.x / 128, 0);  // the same for all lanes, as the compiler can see
        Writer writer(out, alpha, bias, m, n, rooms + threadIdx.x / 32 * ROOM);
        wait_for_previous();
        multiply_tiles(work, Ring{shared_address(ring), full, empty, group}, writer);
    }
}
