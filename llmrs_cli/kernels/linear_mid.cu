// y = x · Wᵀ for 9 to 256 tokens on tensor cores: a block multiplies 16 · WARPS rows of W with TOKENS tokens, 64 columns
// at a time.
//
// Rows of W are the first operand, 16 a warp, tokens the second: few tokens then waste nothing. Both come through one
// ring of STAGES stages in shared memory, 128 bytes a row, swizzled: the 16-byte piece j of row r stands at j ^ (r % 8).
// On Hopper four warps multiply by wgmma, which reads the tokens from shared memory itself; elsewhere by mma.m16n8k16.
// The work is one line of steps, cut evenly among the blocks as runs.cuh says, whatever N and K are. The first weights
// are on their way before wait_for_previous(). Epilogues stand in linear.cuh.
#ifndef WARPS
#define WARPS 8
#endif
#ifndef TOKENS
#define TOKENS 64
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef RESIDENT
#define RESIDENT 1
#endif
#include "mma.cuh"
#include "runs.cuh"
#include "wgmma.cuh"
#include "write_any.cuh"

constexpr int THREADS = WARPS * 32, ROWS = WARPS * 16, NT = TOKENS / 8;
constexpr int COLUMNS = 64;                    // of one step
constexpr int W_BYTES = ROWS * COLUMNS * 2, X_BYTES = TOKENS * COLUMNS * 2, STAGE_BYTES = W_BYTES + X_BYTES;
constexpr int PART = ROWS * TOKENS;            // sums of a tile
constexpr int PARTS_AT_ONCE = NT <= 4 ? 4 : NT <= 8 ? 2 : 1;  // on their way while a tile's parts are added up

// Products of one step on Hopper run on while the block waits for the next step's copies.
DEVICE void begin_products() {
#if __CUDA_ARCH_FEAT_SM90_ALL
    wgmma_begin();
#endif
}
DEVICE void end_products() {
#if __CUDA_ARCH_FEAT_SM90_ALL
    wgmma_end();
#endif
}
DEVICE void wait_for_products() {
#if __CUDA_ARCH_FEAT_SM90_ALL
    wgmma_wait();
#endif
}

// The last products of a tile, whose sums are used from here on.
DEVICE void finish_products(float (&sum)[NT][4]) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    wgmma_wait();
    wgmma_results(sum);
#endif
}

// `COUNT` eights of tokens from `FIRST` on: wgmma takes a power of two of them, at most 16.
template <int FIRST, int COUNT> DEVICE void multiply_tokens(float (&sum)[NT][4], const u32 (&a)[4], u32 x, int step) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int TAKEN = COUNT >= 16 ? 16 : COUNT >= 8 ? 8 : COUNT >= 4 ? 4 : 2;
    wgmma(reinterpret_cast<float (&)[TAKEN][4]>(sum[FIRST]), a, wgmma_operand(x + FIRST * 1024, step), true);
#else
    constexpr int TAKEN = 2;
    const int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, piece = step * 2 + lane / 8 % 2;
    u32 b[4];
    load_matrices(b, x + (FIRST * 8 + row) * 128 + (piece ^ row % 8) * 16);
    mma(sum[FIRST], a[0], a[1], a[2], a[3], b[0], b[1]);
    mma(sum[FIRST + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
#endif
    if constexpr (COUNT > TAKEN) multiply_tokens<FIRST + TAKEN, COUNT - TAKEN>(sum, a, x, step);
}

DEVICE void linear_mid(const Problem& p, int epilogue, float* partials, int* arrivals) {
    extern __shared__ __align__(16) u8 shared[];
    __shared__ int last_arrival;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
    const u32 ring = (shared_address(shared) + 1023) & ~1023u;

    const u32 across = (p.k + COLUMNS - 1) / COLUMNS, token_tiles = (p.m + TOKENS - 1) / TOKENS;
    const Line line{(p.n + ROWS - 1) / ROWS * token_tiles * across, gridDim.x, across};
    const u32 begin = line.start_of(blockIdx.x), end = line.start_of(blockIdx.x + 1);

    // ---- copies: a thread has one piece of every THREADS / 8 rows ---------------------------------------------------
    const int piece = threadIdx.x % 8, first_row = threadIdx.x / 8;
    const u32 place = first_row * 128 + (piece ^ first_row % 8) * 16;
    auto copy_weights = [&](int stage, u32 unit) {
        const int row = unit / across / token_tiles * ROWS + first_row, k = unit % across * COLUMNS + piece * 8;
        const HALF* from = p.weight + i64(row) * p.k + k;
#pragma unroll
        for (int i = 0; i < ROWS; i += THREADS / 8)
            copy_async(ring + stage * STAGE_BYTES + i * 128 + place, from + i64(i) * p.k, row + i < p.n && k < p.k);
    };
    auto copy_x = [&](int stage, u32 unit) {
        const int token = unit / across % token_tiles * TOKENS + first_row, k = unit % across * COLUMNS + piece * 8;
        const HALF* from = p.x + i64(token) * p.k + k;
#pragma unroll
        for (int i = 0; i < TOKENS; i += THREADS / 8)
            if (i + first_row < TOKENS)
                copy_async(ring + stage * STAGE_BYTES + W_BYTES + i * 128 + place, from + i64(i) * p.k,
                           token + i < p.m && k < p.k);
    };

    allow_next();
    for (int s = 0; s < STAGES - 1; s++)
        if (begin + s < end) copy_weights(s, begin + s);
    wait_for_previous();
    for (int s = 0; s < STAGES - 1; s++) {
        if (begin + s < end) copy_x(s, begin + s);
        copy_commit();  // the first also holds all weights so far
    }

    // ---- one tile -----------------------------------------------------------------------------------------------------
    float sum[NT][4];
    auto clear = [&] {
#pragma unroll
        for (int n = 0; n < NT; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
    };
    auto multiply = [&](int stage) {
        const u32 weights = ring + stage * STAGE_BYTES, x = weights + W_BYTES;
        const int row = warp * 16 + lane % 16;
        u32 a[COLUMNS / 16][4];
#pragma unroll
        for (int step = 0; step < COLUMNS / 16; step++)
            load_matrices(a[step], weights + row * 128 + (step * 2 + lane / 16 ^ row % 8) * 16);
        begin_products();
#pragma unroll
        for (int step = 0; step < COLUMNS / 16; step++) multiply_tokens<0, NT>(sum, a[step], x, step);
        end_products();
    };
    // This block's part of the tile is stored; true in the block that is the last to do so, with the sum of all parts.
    auto gather = [&](u32 tile) {
        const Sharers sharers(line, tile);
        float4* mine = reinterpret_cast<float4*>(partials + i64(sharers.slot_of(blockIdx.x)) * PART) + threadIdx.x;
#pragma unroll
        for (int n = 0; n < NT; n++) mine[n * THREADS] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) last_arrival = atomicAdd(&arrivals[tile], 1) == int(sharers.count()) - 1;
        __syncthreads();
        if (!last_arrival) return false;
        __threadfence();
        clear();
#pragma unroll PARTS_AT_ONCE
        for (u32 w = sharers.first; w <= sharers.last; w++) {
            const float4* part = reinterpret_cast<const float4*>(partials + i64(sharers.slot_of(w)) * PART) + threadIdx.x;
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const float4 v = __ldcg(part + n * THREADS);
                sum[n][0] += v.x, sum[n][1] += v.y, sum[n][2] += v.z, sum[n][3] += v.w;
            }
        }
        if (threadIdx.x == 0) arrivals[tile] = 0;
        return true;
    };
    auto write = [&](u32 tile) {
        const int row = tile / token_tiles * ROWS + warp * 16 + g, token = tile % token_tiles * TOKENS + 2 * c;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int t = token + n * 8 + i % 2, r = row + i / 2 * 8;
                if (t >= p.m || r >= p.n) continue;
                write_any(p, epilogue, t, r, i / 2, sum[n][i] * p.alpha, sum[n][i % 2 + 2] * p.alpha);
            }
    };

    int stage = 0;
#pragma unroll 1
    for (u32 at = begin; at < end;) {
        const u32 tile = at / across, stop = min(end, (tile + 1) * across);
        const bool whole = stop - at == across;
        clear();
#pragma unroll 1
        for (; at < stop; at++) {
            copy_wait<STAGES - 2>();
            fence_for_wgmma();
            wait_for_products();
            __syncthreads();  // this stage is here, and nobody reads the one before it any more
            const int freed = stage == 0 ? STAGES - 1 : stage - 1;
            if (at + STAGES - 1 < end) copy_weights(freed, at + STAGES - 1), copy_x(freed, at + STAGES - 1);
            copy_commit();
            multiply(stage);
            if (++stage == STAGES) stage = 0;
        }
        finish_products(sum);
        if (whole || gather(tile)) write(tile);
    }
    copy_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) linear_mid_any(
    const HALF* weight,  // (N, K)
    const HALF* x,       // (M, K)
    float alpha,
    const float* bias,   // (N,) or null
    void* out,
    float* partials,     // [2 · blocks][ROWS · TOKENS]
    int* arrivals,       // one for each tile of outputs, zero before and after
    int m, int n, int k, int epilogue) {
    Problem p{};
    p.weight = weight, p.x = x, p.alpha = alpha, p.bias = bias, p.out = out, p.m = m, p.n = n, p.k = k;
    linear_mid(p, epilogue, partials, arrivals);
}
