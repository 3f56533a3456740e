// y = x · Wᵀ for more than a few tokens on Hopper: the copy engine brings tiles, wgmma multiplies them.
//
// A block multiplies a tile of TOKENS = 64 · WGS tokens with ROWS rows of W, 64 columns a step: each of WGS warpgroups
// has 64 tokens and all rows, one more starts the copies. CLUSTER blocks work on neighbouring rows of W and
// the same tokens: each fetches its share of the tokens for all of them, since tokens and not weights are what a
// multiprocessor would read most. A grid fills the GPU once and takes turns at the tiles; the copies run ahead from one
// tile into the next. Where there are too few tiles, each is cut into `slices` along K: their sums meet in memory, and
// the block that comes last adds them up, in their order, whoever it is.
//
// The first weights are on their way before wait_for_previous(). Epilogues stand in linear.cuh.
// Design after the ping-pong kernels of CUTLASS 3 (Thakkar et al., 2023), stream-K's meeting after Osama et al., 2023.
#ifndef WGS
#define WGS 1
#endif
#ifndef ROWS
#define ROWS 144
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef CLUSTER
#define CLUSTER 2
#endif
#define WARPS (4 * WGS + 4)
#include "linear.cuh"
#include "tensor_copy.cuh"
#include "wgmma_shared.cuh"

constexpr int TOKENS = 64 * WGS, COLUMNS = 64, MULTIPLIERS = 128 * WGS;
constexpr int X_BYTES = TOKENS * 128, W_BYTES = ROWS * 128, STAGE_BYTES = X_BYTES + W_BYTES;
constexpr int SHARE = TOKENS / CLUSTER;  // tokens that a block fetches for its cluster
constexpr int PART = TOKENS * ROWS;      // sums of a tile
constexpr int REGISTERS = WGS == 4 ? 112 : WGS == 3 ? 160 : 240;  // what the copying warps can spare, shared out

struct Work {
    const Problem& p;
    int token_tiles, items, slices, steps;
    DEVICE Work(const Problem& p, int slices)
        : p(p), token_tiles((p.m + TOKENS - 1) / TOKENS), slices(slices), steps((p.k + COLUMNS - 1) / COLUMNS) {
        items = (p.n + ROWS * CLUSTER - 1) / (ROWS * CLUSTER) * token_tiles * slices;
    }
};

// One turn of a block: a tile, and the slice of K.
struct Turn {
    int slice, tile, token, row, first, past;  // tile: of all tiles; token, row: its first ones; steps of K
    DEVICE Turn(const Work& work, int item, int rank) {
        slice = item % work.slices;
        const int whole = item / work.slices, row_tile = whole / work.token_tiles * CLUSTER + rank;
        token = whole % work.token_tiles * TOKENS, row = row_tile * ROWS;
        tile = row_tile * work.token_tiles + whole % work.token_tiles;
        first = work.steps * slice / work.slices, past = work.steps * (slice + 1) / work.slices;
    }
};

DEVICE void copy_tiles(const Work& work, const TensorMap& weights, const TensorMap& x, u32 ring, u32 full, u32 empty,
                       int rank) {
    int slot = 0, ahead = 0;
    u32 phase = 0;
    auto copy_weights = [&](const Turn& turn, int step) {
        barrier_expect(full + slot * 8, STAGE_BYTES);
        copy_box(ring + slot * STAGE_BYTES + X_BYTES, weights, step * COLUMNS, turn.row, full + slot * 8);
    };
    auto copy_x = [&](const Turn& turn, int step, int slot) {
        const u32 to = ring + slot * STAGE_BYTES + rank * SHARE * 128;
        const int token = turn.token + rank * SHARE;
        if constexpr (CLUSTER > 1)
            copy_box_to(to, x, step * COLUMNS, token, full + slot * 8, (1 << CLUSTER) - 1);
        else
            copy_box(to, x, step * COLUMNS, token, full + slot * 8);
    };
    const int first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
    if (first < work.items) {
        const Turn turn(work, first, rank);
        ahead = min(STAGES, turn.past - turn.first);
        for (; slot < ahead; slot++) copy_weights(turn, turn.first + slot);
        wait_for_previous();
        for (int s = 0; s < ahead; s++) copy_x(turn, turn.first + s, s);
        if (slot == STAGES) slot = 0, phase ^= 1;
    }
#pragma unroll 1
    for (int item = first; item < work.items; item += stride) {
        const Turn turn(work, item, rank);
#pragma unroll 1
        for (int step = turn.first + ahead; step < turn.past; step++) {
            barrier_wait(empty + slot * 8, phase ^ 1);
            copy_weights(turn, step);
            copy_x(turn, step, slot);
            if (++slot == STAGES) slot = 0, phase ^= 1;
        }
        ahead = 0;
    }
}

// A thread's sums: of tokens g and g + 8 of its warp's 16, and of rows 8j + 2c and the next.
typedef float Sums[ROWS / 8][4];

// This block's sums are stored; true in the block that is the last of its tile, with the sums of all slices.
DEVICE bool gather(const Turn& turn, int slices, Sums& d, float* partials, int* arrivals, int* last) {
    float4* mine = reinterpret_cast<float4*>(partials + i64(turn.tile * slices + turn.slice) * PART) + threadIdx.x;
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) __stcg(mine + j * MULTIPLIERS, make_float4(d[j][0], d[j][1], d[j][2], d[j][3]));
    __threadfence();
    asm volatile("bar.sync 1, %0;" :: "n"(MULTIPLIERS) : "memory");
    if (threadIdx.x == 0) *last = atomicAdd(&arrivals[turn.tile], 1) == slices - 1;
    asm volatile("bar.sync 1, %0;" :: "n"(MULTIPLIERS) : "memory");
    if (!*last) return false;
    __threadfence();
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) d[j][0] = d[j][1] = d[j][2] = d[j][3] = 0.0f;
#pragma unroll 1
    for (int s = 0; s < slices; s++) {
        const float4* part = mine + i64(s - turn.slice) * (PART / 4);
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) {
            const float4 v = __ldcg(part + j * MULTIPLIERS);
            d[j][0] += v.x, d[j][1] += v.y, d[j][2] += v.z, d[j][3] += v.w;
        }
    }
    if (threadIdx.x == 0) arrivals[turn.tile] = 0;
    return true;
}

DEVICE void write(const Problem& p, int epilogue, const Turn& turn, const Sums& d) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const int token = turn.token + threadIdx.x / 32 * 16 + g;
    float* wide = static_cast<float*>(p.out);
    u32* narrow = static_cast<u32*>(p.out);
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
        const int row = turn.row + j * 8 + 2 * c;
        if (row >= p.n || (epilogue == SILU && j % 2)) continue;
        const float2 bias = p.bias ? *reinterpret_cast<const float2*>(p.bias + row) : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = token + half * 8;
            if (t >= p.m) continue;
            float a = d[j][half * 2] * p.alpha + bias.x, b = d[j][half * 2 + 1] * p.alpha + bias.y;
            const i64 at = i64(t) * p.n + row;
            if (epilogue == STORE) {
                narrow[at / 2] = pack2(a, b);
            } else if (epilogue == SILU) {
                const int up = j + 1 < ROWS / 8 ? j + 1 : j;
                const float2 more = p.bias ? *reinterpret_cast<const float2*>(p.bias + row + 8) : make_float2(0.0f, 0.0f);
                const float u = d[up][half * 2] * p.alpha + more.x, v = d[up][half * 2 + 1] * p.alpha + more.y;
                a = a / (1.0f + __expf(-a)) * u * HEADROOM, b = b / (1.0f + __expf(-b)) * v * HEADROOM;
                narrow[(i64(t) * (p.n / 2) + turn.row / 2 + j * 4 + 2 * c) / 2] = pack2(a, b);
            } else {
                float2* to = reinterpret_cast<float2*>(wide + at);
                if (epilogue == ADD) {
                    const float2 before = *to;
                    a += before.x, b += before.y;
                }
                *to = make_float2(a, b);
            }
        }
    }
}

DEVICE void multiply_tiles(const Work& work, int epilogue, u32 ring, u32 full, u32 empty, int rank, float* partials,
                           int* arrivals, int* last) {
    const int group = threadIdx.x / 128;
    Sums d;
    int slot = 0;
    u32 phase = 0;
    auto release = [&](int slot) {
        if (threadIdx.x % 128 < CLUSTER) barrier_arrive(empty + slot * 8, threadIdx.x % 128);
    };
    wait_for_previous();
#pragma unroll 1
    for (int item = blockIdx.x / CLUSTER; item < work.items; item += gridDim.x / CLUSTER) {
        const Turn turn(work, item, rank);
        int before = -1;
#pragma unroll 1
        for (int step = turn.first; step < turn.past; step++) {
            barrier_wait(full + slot * 8, phase);
            const u32 x = ring + slot * STAGE_BYTES + group * 64 * 128, w = ring + slot * STAGE_BYTES + X_BYTES;
            wgmma_begin(d);
#pragma unroll
            for (int i = 0; i < COLUMNS / 16; i++)
                wgmma(d, wgmma_operand(x, i), wgmma_operand(w, i), step > turn.first || i > 0);
            wgmma_end();
            if (before >= 0) {  // the step before is done with its slot
                wgmma_wait<1>(d);
                release(before);
            }
            before = slot;
            if (++slot == STAGES) slot = 0, phase ^= 1;
        }
        wgmma_wait<0>(d);
        release(before);
        if (work.slices == 1 || gather(turn, work.slices, d, partials, arrivals, last))
            write(work.p, epilogue, turn, d);
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WARPS * 32, 1) linear_wide(
    const __grid_constant__ TensorMap weights,  // (N, K), boxes of ROWS
    const __grid_constant__ TensorMap x,        // (M, K), boxes of SHARE
    float alpha,
    const float* bias,  // (N,) or null
    void* out,
    float* partials,    // [tiles][slices][PART], if slices > 1
    int* arrivals,      // one for each tile, zero before and after
    int m, int n, int k, int slices, int epilogue) {
    extern __shared__ __align__(16) u8 shared[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    __shared__ int last;
    const u32 ring = (shared_address(shared) + 1023) & ~1023u;
    const u32 full = shared_address(barriers), empty = full + 8 * STAGES;
    const int rank = blockIdx.x % CLUSTER;
    Problem p{};
    p.alpha = alpha, p.bias = bias, p.out = out, p.m = m, p.n = n, p.k = k;
    const Work work(p, slices);
    allow_next();
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, WGS * CLUSTER);
        }
        barriers_ready();
    }
    cluster_sync();
    if (threadIdx.x >= MULTIPLIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == MULTIPLIERS) copy_tiles(work, weights, x, ring, full, empty, rank);
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS));
        multiply_tiles(work, epilogue, ring, full, empty, rank, partials, arrivals, &last);
    }
    cluster_sync();  // nobody arrives at the barriers of a block that has left
}
