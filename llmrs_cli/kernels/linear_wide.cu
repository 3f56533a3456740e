// y = x · Wᵀ for more than a few tokens on Hopper: the copy engine brings tiles, wgmma multiplies them.
//
// A block multiplies a tile of TOKENS = 64 · WGS tokens with ROWS rows of W, 64 columns a step: each of WGS warpgroups
// has 64 tokens and all rows, one more starts the copies. SLICES blocks, a cluster, each take a part of K, so that few
// rows keep the whole GPU reading; their sums meet in shared memory, in the order of the slices. Without slices a grid
// fills the GPU once and takes turns at the tiles; the copies run ahead from one into the next.
//
// The weights of `early` steps are on their way before wait_for_previous(), and where RESIDENT is 2 before the kernel ahead
// has left its multiprocessor. Epilogues stand in linear.cuh; each is compiled by itself, since code that is met for the
// first time comes slowly.
//
// A norm between two products needs no kernel: after ADD, x' = residual · the norm's weights is left in 16 bits, and the
// squares of the residual summed over each block's rows; the product that follows takes x' and scales its sums by 1 / rms.
// Design after the warp-specialised kernels of CUTLASS 3 (Thakkar et al., 2023).
#ifndef WGS
#define WGS 1
#endif
#ifndef ROWS
#define ROWS 144
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef SLICES
#define SLICES 1
#endif
#ifndef RESIDENT
#define RESIDENT 1
#endif
#ifndef EPILOGUE
#define EPILOGUE 0
#endif
#define WARPS (4 * WGS + 4)
#include "linear.cuh"
#include "tensor_copy.cuh"
#include "warpgroups.cuh"
#include "wgmma_shared.cuh"
#include "wide_epilogue.cuh"

constexpr int TOKENS = 64 * WGS, COLUMNS = 64, MULTIPLIERS = 128 * WGS;
constexpr int X_BYTES = TOKENS * 128, W_BYTES = ROWS * 128, STAGE_BYTES = X_BYTES + W_BYTES;
constexpr int UNITS = ROWS / 16;  // rows that stay together: gates with their ups
// What the copying warps can spare, shared out.
constexpr int COPYING = 32, LAUNCHED = 65536 / (RESIDENT * WARPS * 32) / 8 * 8, SPARED = (LAUNCHED * (WGS + 1) - COPYING) / WGS / 8 * 8;
constexpr int REGISTERS = SPARED < 240 ? SPARED : 240;

struct Work {
    const Problem& p;
    int token_tiles, items, steps;
    DEVICE Work(const Problem& p) : p(p), token_tiles((p.m + TOKENS - 1) / TOKENS), steps((p.k + COLUMNS - 1) / COLUMNS) {
        items = (p.n + ROWS - 1) / ROWS * token_tiles;
    }
};

// One turn of a block: its first token and row, and its steps of K.
struct Turn {
    int token, row, first, past;
    DEVICE Turn(const Work& work, int item, int slice) {
        const int rows = work.token_tiles == 1 ? item : item / work.token_tiles;
        token = (item - rows * work.token_tiles) * TOKENS, row = rows * ROWS;
        first = work.steps * slice / SLICES, past = work.steps * (slice + 1) / SLICES;
    }
};

// The copies of a block. `fetched`: tokens of a step.
struct Copies {
    const TensorMap &weights, &x;
    u32 ring, full;
    int slice, fetched;
    DEVICE void weight(const Turn& turn, int step, int at) const {
        barrier_expect(full + at * 8, W_BYTES + fetched * 128);
        copy_box(ring + at * STAGE_BYTES + X_BYTES, weights, step * COLUMNS, turn.row, full + at * 8);
    }
    DEVICE void tokens(const Turn& turn, int step, int at) const {
        copy_box(ring + at * STAGE_BYTES, x, step * COLUMNS, turn.token, full + at * 8);
    }
};

// All but the first `ahead` weights, which are on their way.
DEVICE void copy_tiles(const Work& work, const Copies& copies, u32 empty, int ahead) {
    const int first = blockIdx.x / SLICES, stride = gridDim.x / SLICES;
    Slot<STAGES> slot;
    if (first < work.items) {
        const Turn turn(work, first, copies.slice);
        for (int s = 0; s < ahead; s++, slot.next()) copies.tokens(turn, turn.first + s, s);
    }
#pragma unroll 1
    for (int item = first; item < work.items; item += stride) {
        const Turn turn(work, item, copies.slice);
#pragma unroll 1
        for (int step = turn.first + ahead; step < turn.past; step++, slot.next()) {
            barrier_wait(empty + slot.at * 8, slot.phase ^ 1);
            copies.weight(turn, step, slot.at);
            copies.tokens(turn, step, slot.at);
        }
        ahead = 0;
    }
}

// A thread's sums: of tokens g and g + 8 of its warp's 16, and of rows 8j + 2c and the next.
typedef float Sums[ROWS / 8][4];

// The sums of all slices of a tile meet: each block writes its share of the rows, SHARE units at most.
constexpr int SHARE = (UNITS + SLICES - 1) / SLICES;

DEVICE void meet(Writer& writer, const Sums& d, Before (&before)[SHARE], int column, u8* ring, int slice) {
    float4* mine = reinterpret_cast<float4*>(ring) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SHARE; i++)
        before[i].load_residual(writer.p, writer.token, column + (i * SLICES + slice) * 16);
    asm volatile("bar.sync 1, %0;" :: "n"(MULTIPLIERS) : "memory");  // nobody reads the ring any more
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) mine[j * MULTIPLIERS] = make_float4(d[j][0], d[j][1], d[j][2], d[j][3]);
    cluster_sync();
    float2 sums[SHARE][2][2];
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int unit = min(i * SLICES + slice, UNITS - 1);
        const u32 at = shared_address(mine + unit * 2 * MULTIPLIERS);
        float4 part[SLICES][2];
#pragma unroll
        for (int s = 0; s < SLICES; s++) {
            const u32 there = cluster_address(at, s);
            part[s][0] = load_cluster(there), part[s][1] = load_cluster(there + MULTIPLIERS * 16);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float4 sum = part[0][h];
#pragma unroll
            for (int s = 1; s < SLICES; s++)
                sum.x += part[s][h].x, sum.y += part[s][h].y, sum.z += part[s][h].z, sum.w += part[s][h].w;
            sums[i][h][0] = make_float2(sum.x, sum.y), sums[i][h][1] = make_float2(sum.z, sum.w);
        }
    }
    cluster_arrive();  // this block reads of no other any more
#pragma unroll
    for (int i = 0; i < SHARE; i++)
        if (i * SLICES + slice < UNITS) writer.write(before[i], column + (i * SLICES + slice) * 16, sums[i]);
}

// What the multiplying warps share.
struct Ring {
    u8* bytes;
    u32 full, empty;
    // All threads of a warpgroup are done with a slot.
    DEVICE void release(int at) const {
        if (threadIdx.x % 128 == 0) barrier_arrive(empty + at * 8);
    }
};

DEVICE void multiply(const Ring& ring, const Turn& turn, Slot<STAGES>& slot, Sums& d) {
    const u32 xs = shared_address(ring.bytes) + (WGS > 1 ? own_group() : 0) * 64 * 128, ws = shared_address(ring.bytes) + X_BYTES;
    int before = -1;
#pragma unroll 1
    for (int step = turn.first; step < turn.past; step++, slot.next()) {
        barrier_wait(ring.full + slot.at * 8, slot.phase);
        const u32 at = slot.at * STAGE_BYTES;
        const u64 x = wgmma_operand(xs + at, 0), w = wgmma_operand(ws + at, 0);
        wgmma_begin(d);
#pragma unroll
        for (int i = 0; i < COLUMNS / 16; i++) wgmma(d, further(x, i * 32), further(w, i * 32), step > turn.first || i > 0);
        wgmma_end();
        if (before >= 0) {  // the step before is done with its slot
            wgmma_wait<1>(d);
            ring.release(before);
        }
        before = slot.at;
    }
    wgmma_wait<0>(d);
    if (SLICES == 1) ring.release(before);
}

DEVICE void multiply_tiles(const Work& work, const Norms& norms, const Ring& ring) {
    const int own = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;  // of a tile's tokens
    const int two = threadIdx.x % 4 * 2, slice = blockIdx.x % SLICES;
    Sums d;
    Slot<STAGES> slot;
    if constexpr (SLICES > 1) {
        const Turn turn(work, blockIdx.x / SLICES, slice);
        Before before[SHARE];
#pragma unroll
        for (int i = 0; i < SHARE; i++) before[i].load(work.p, norms, turn.row + (i * SLICES + slice) * 16 + two);
        wait_for_previous();
        Writer writer(work.p, norms, turn.token + own);
        multiply(ring, turn, slot, d);
        meet(writer, d, before, turn.row + two, ring.bytes, slice);
        writer.leave(turn.row / ROWS * SLICES + slice);
    } else {
        wait_for_previous();
#pragma unroll 1
        for (int item = blockIdx.x; item < work.items; item += gridDim.x) {
            const Turn turn(work, item, 0);
            Writer writer(work.p, norms, turn.token + own);
            multiply(ring, turn, slot, d);
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                const float(&g)[4] = d[2 * u], (&r)[4] = d[2 * u + 1];
                const float2 sums[2][2] = {{make_float2(g[0], g[1]), make_float2(g[2], g[3])},
                                           {make_float2(r[0], r[1]), make_float2(r[2], r[3])}};
                const int column = turn.row + u * 16 + two;
                Before before;
                before.load(work.p, norms, column);
                before.load_residual(work.p, writer.token, column);
                writer.write(before, column, sums);
            }
            writer.leave(turn.row / ROWS);
        }
    }
}

extern "C" __global__ void __cluster_dims__(SLICES, 1, 1) __launch_bounds__(WARPS * 32, RESIDENT) linear_wide(
    const __grid_constant__ TensorMap weights,  // (N, K), boxes of ROWS
    const __grid_constant__ TensorMap x,        // (M, K), boxes of `fetched`
    float alpha,
    const float* bias,  // (N,) or null
    void* out,
    const float* squares,  // (M, stride) or null: of x before its norm, in `parts` sums
    int parts, int stride, float eps,
    const float* norm,     // (N,) or null: weights of the norm that follows
    HALF* normed,          // (M, N)
    float* left,           // (M, left_stride)
    int left_stride, int m, int n, int k, int fetched, int early) {
    extern __shared__ __align__(16) u8 shared[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    u8* ring = shared + ((1024 - shared_address(shared) % 1024) & 1023);
    const u32 full = shared_address(barriers), empty = full + 8 * STAGES;
    Problem p{};
    p.alpha = alpha, p.bias = bias, p.out = out, p.m = m, p.n = n, p.k = k;
    const Work work(p);
    const Norms norms{squares, parts, stride, eps, norm, normed, left, left_stride};
    const Copies copies{weights, x, shared_address(ring), full, int(blockIdx.x) % SLICES, fetched};
    int ahead = 0;
    allow_next();
    if (threadIdx.x == MULTIPLIERS) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, WGS);
        }
        barriers_ready();
        prefetch_map(x);
        if (int(blockIdx.x / SLICES) < work.items) {
            const Turn turn(work, blockIdx.x / SLICES, copies.slice);
            ahead = min(early, turn.past - turn.first);
            for (int s = 0; s < ahead; s++) copies.weight(turn, turn.first + s, s);
        }
    }
    __syncthreads();
    if (threadIdx.x >= MULTIPLIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COPYING));
        if (threadIdx.x == MULTIPLIERS) {
            wait_for_previous();
            copy_tiles(work, copies, empty, ahead);
        }
        __syncwarp();
        if constexpr (SLICES > 1) cluster_sync(), cluster_arrive();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS));
        multiply_tiles(work, norms, Ring{ring, full, empty});
    }
    if constexpr (SLICES > 1) cluster_wait();  // nobody leaves while another reads its sums
}
