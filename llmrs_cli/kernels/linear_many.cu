// y = x · Wᵀ for many tokens on Hopper: the copy engine brings tiles and takes results away, wgmma multiplies.
//
// many_tiles.cuh says how a block multiplies; one more warpgroup starts the copies. A wgmma reads shared memory at nearly the
// rate at which it can be read while copies fill it, so tiles are large; and L2 gives less than the blocks of a grid would
// read with all but the largest, so two blocks, a cluster, may share one operand of their tiles (PAIR): each brings a half
// of it to both.
//
// The copies run ahead from one turn into the next. A block brings a step when all warpgroups of both have left its stage, and
// ends when they have left all. Weights of the first steps are on their way before wait_for_previous(). Design after the
// warp-specialised kernels of CUTLASS 3 (Thakkar et al., 2023).
#ifndef STAGES
#define STAGES 4
#endif
#ifndef ROOM
#define ROOM 4096
#endif
#ifndef PAIR
#define PAIR 1
#endif
#define WARPS (4 * GROUPS + 4)
#define CLUSTER (PAIR ? 2 : 1)
#include "many_tiles.cuh"

constexpr int COPYING = 32;  // registers

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
        take_registers<multiplying_registers(1, COPYING)>();
        const int group = own_group();
        Writer writer(out, alpha, bias, m, n, rooms + threadIdx.x / 32 * ROOM);
        wait_for_previous();
        multiply_tiles(work, Ring{shared_address(ring), full, empty, group}, writer);
    }
}
