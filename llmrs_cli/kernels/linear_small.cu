// y = x · Wᵀ for few tokens (M ≤ 8 · NT): one pass over W at memory speed.
//
// Every block reads the same number of W's rows, whatever N is. WK warps split K, the others split the rows. A lane's
// 16-byte copy holds 8 consecutive k of one row; taking its four pairs as the k fragments of two mma steps permutes k
// alike in W and x, which a sum over k does not notice. So a lane consumes what it copied itself, and its ring of
// copies in shared memory needs no barrier. STEPS_AHEAD steps are in flight, the first of them before
// wait_for_previous(): weights do not depend on the kernel before. The ring leaves half of the shared memory to the
// next kernel.
//
// Prologue  plain: x (M, K) 16-bit.   norm: residual (M, K) float32, RMS norm into shared memory (M ≤ 8).
// Epilogue  store: 16-bit y (M, N), + bias.   add: residual (M, N) float32 += y + bias.
//           silu: W (2F, K) holds 8 rows of gate, 8 of up, and so on: one stream of memory, and a tile of 16 rows
//           is 8 pairs; y (M, F) = silu(gate) · up · HEADROOM.   logits: float32 y (M, N).
#include "mma.cuh"

#ifndef WARPS
#define WARPS 8
#endif
#ifndef TILES
#define TILES 2
#endif
#ifndef STEPS_AHEAD
#define STEPS_AHEAD 6
#endif
#ifndef RESIDENT
#define RESIDENT 3
#endif
// Three resident blocks leave 80 registers a thread, four too few for what sm_100 makes of the float16 kernel.
#if __CUDA_ARCH__ >= 1000
#define BLOCKS_AT_ONCE (RESIDENT > 2 ? 2 : RESIDENT)
#else
#define BLOCKS_AT_ONCE RESIDENT
#endif

constexpr int ROWS = 16 * TILES;      // rows of W in one pass of a warp
constexpr int ROW_STRIDE = ROWS + 4;  // of the partial sums in shared memory, in floats: no bank conflicts
enum Epilogue { STORE, ADD, SILU, LOGITS };

struct Problem {
    const HALF* weight;      // (N, K)
    const HALF* x;           // (M, K), plain prologue
    const float* residual;   // (T, K), norm prologue
    const int* rows;         // (M,) rows of `residual` to take, or null: 0 … M - 1
    const float* norm;       // (K,), norm prologue
    float eps;
    float alpha;             // on x · Wᵀ
    const float* bias;       // (N,) or null
    void* out;               // (M, N) 16-bit or float32; for SILU (M, F)
    int m, n, k;             // for SILU n = 2F
    int split;               // WK: warps of a block along K, a divisor of WARPS
};

// The M residual rows times the norm's weights into shared memory, 16-bit, `stride` elements a row. The factor
// 1 / rms of a token commutes with the product, so nobody waits for its sum: it goes to `factors` (M,), which is
// complete after the next barrier but one, and the epilogue applies it.
DEVICE void scale_row(const Problem& p, HALF* shared, int k, const float4& v, float& squares) {
    const float4 w = *reinterpret_cast<const float4*>(p.norm + k);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    *reinterpret_cast<uint2*>(shared) = make_uint2(pack2(v.x * w.x * HEADROOM, v.y * w.y * HEADROOM),
                                                   pack2(v.z * w.z * HEADROOM, v.w * w.w * HEADROOM));
}

template <int TOKENS>
DEVICE void norm_rows(const Problem& p, HALF* shared, int stride, float* scratch, float* factors) {
    constexpr int STEP = WARPS * 128, UNROLL = 4;
    float squares[TOKENS] = {};
    auto row_of = [&](int t) { return p.residual + i64(p.rows ? p.rows[t] : t) * p.k; };
    if (p.m == 1) {  // all loads of the row in flight at once
#pragma unroll 1
        for (int k0 = threadIdx.x * 4; k0 < p.k; k0 += STEP * UNROLL) {
            float4 v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (k0 + u * STEP < p.k) v[u] = *reinterpret_cast<const float4*>(row_of(0) + k0 + u * STEP);
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (k0 + u * STEP < p.k) scale_row(p, shared + k0 + u * STEP, k0 + u * STEP, v[u], squares[0]);
        }
    } else {  // four tokens in flight at once
#pragma unroll 1
        for (int k = threadIdx.x * 4; k < p.k; k += STEP) {
#pragma unroll
            for (int t0 = 0; t0 < TOKENS; t0 += UNROLL) {
                float4 v[UNROLL];
#pragma unroll
                for (int u = 0; u < UNROLL; u++)
                    if (t0 + u < p.m) v[u] = *reinterpret_cast<const float4*>(row_of(t0 + u) + k);
#pragma unroll
                for (int u = 0; u < UNROLL; u++)
                    if (t0 + u < p.m)
                        scale_row(p, shared + (t0 + u) * stride + k, k, v[u], squares[t0 + u]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        if (t >= p.m) break;
        const float sum = warp_sum(squares[t]);
        if (threadIdx.x % 32 == 0) scratch[t * WARPS + threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < p.m) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += scratch[threadIdx.x * WARPS + w];
        factors[threadIdx.x] = rsqrtf(sum / p.k + p.eps) / HEADROOM;
    }
}

// Output of row `row`; for SILU that is a gate row, and `up` belongs to row + 8.
template <Epilogue E>
DEVICE void write_out(const Problem& p, int token, int row, float value, float up) {
    if (p.bias) value += p.bias[row];
    if constexpr (E == SILU) {
        if (p.bias) up += p.bias[row + 8];
        const i64 at = i64(token) * (p.n / 2) + row / 16 * 8 + row % 16;
        static_cast<HALF*>(p.out)[at] = to_half(value / (1.0f + __expf(-value)) * up * HEADROOM);
    } else {
        const i64 at = i64(token) * p.n + row;
        if constexpr (E == STORE) static_cast<HALF*>(p.out)[at] = to_half(value);
        if constexpr (E == ADD) static_cast<float*>(p.out)[at] += value;
        if constexpr (E == LOGITS) static_cast<float*>(p.out)[at] = value;
    }
}

template <int NT, bool NORM, Epilogue E>
DEVICE void linear(const Problem& p) {
    extern __shared__ __align__(16) float shared[];
    const int x_bytes = NORM ? 0 : p.m * 64;                   // of one step in the ring: tokens' 32 values of k
    const int slot_bytes = TILES * 1024 + x_bytes;
    float* partial = shared;                                   // [WARPS][8·NT][ROW_STRIDE]
    u8* rings = reinterpret_cast<u8*>(partial + WARPS * 8 * NT * ROW_STRIDE);  // [WARPS][STEPS_AHEAD][slot]
    float* scratch = reinterpret_cast<float*>(rings + WARPS * STEPS_AHEAD * slot_bytes);  // norm only: [8][WARPS] sums,
    float* factors = scratch + 8 * WARPS;                      // [8] factors,
    HALF* normed = reinterpret_cast<HALF*>(factors + 8);       // [M][K + 32] values
    const int x_stride = (p.k + 63) / 64 * 64 + 32;            // of `normed`

    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
    const int wk = warp % p.split, wr = warp / p.split, groups = WARPS / p.split;
    u8* ring = rings + warp * STEPS_AHEAD * slot_bytes;

    // The rows are cut into passes of equal size, at most ROWS, in units that stay together. Blocks take turns, so that
    // together they move through W in a narrow window: few pages of memory are in use at a time.
    constexpr int UNIT = E == SILU ? 16 : 1;
    const int units = p.n / UNIT, workers = gridDim.x * groups;
    const int turns = (p.n + workers * ROWS - 1) / (workers * ROWS);
    auto row_of = [&](int turn, int next) {
        const int pass = (turn * gridDim.x + blockIdx.x) * groups + wr + next;
        return int(i64(units) * pass / (turns * workers)) * UNIT;
    };
    const int all = (p.k + 31) / 32;
    // Warps take turns along K, so that together they read long runs of a row at about the same time.
    const int steps = (all - wk + p.split - 1) / p.split;
    const int total = turns * steps;

    // The copies run ahead of the products, with their own place: step `load_step` of rows `load_row`.
    // Offsets are 32-bit elements: the launcher refuses larger matrices.
    const u32 eight = 8 * p.k;
    int load_step = 0, load_turn = 0, load_row = row_of(0, 0), load_end = row_of(0, 1), loaded = 0;
    u32 offset = u32(load_row + g) * p.k + wk * 32 + c * 8;
    auto copy_weights = [&](int slot) {
        const bool inside = loaded < total && (wk + load_step * p.split) * 32 + c * 8 < p.k;
        const int live = inside ? load_end - load_row - g : 0;
        const u32 to = shared_address(ring) + slot * slot_bytes + lane * 16;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const u32 at = offset + 2 * t * eight;
            copy_async(to + t * 1024, p.weight + at, t * 16 < live);
            copy_async(to + t * 1024 + 512, p.weight + (at + eight), t * 16 + 8 < live);
        }
        offset += 32 * p.split, loaded++;
        if (++load_step == steps) {
            load_step = 0, load_turn++;
            load_row = row_of(load_turn, 0), load_end = row_of(load_turn, 1);
            offset = u32(load_row + g) * p.k + wk * 32 + c * 8;
        }
    };
    int x_step = 0;  // the same for x, which only the plain prologue copies
    auto copy_x = [&](int slot) {
        if constexpr (!NORM) {
            const int k = (wk + x_step * p.split) * 32 + c * 8;
            const u32 to = shared_address(ring) + slot * slot_bytes + TILES * 1024 + lane * 16;
#pragma unroll
            for (int n = 0; n < NT; n++)
                if (n * 8 + g < p.m) copy_async(to + n * 512, p.x + i64(n * 8 + g) * p.k + k, k < p.k);
            if (++x_step == steps) x_step = 0;
        }
    };

    allow_next();
    if constexpr (NORM)
        for (int k = threadIdx.x * 32; k < p.k; k += WARPS * 1024)
            asm volatile("prefetch.global.L2 [%0];" :: "l"(p.norm + k));
    for (int s = 0; s < STEPS_AHEAD; s++) {
        copy_weights(s);
        copy_commit();
    }
    wait_for_previous();
    for (int s = 0; s < STEPS_AHEAD; s++) {
        copy_x(s);
        copy_commit();
    }
    if constexpr (NORM) norm_rows<8 * NT>(p, normed, x_stride, scratch, factors);

    float sum[TILES][NT][4];
    auto clear = [&]() {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int n = 0; n < NT; n++) sum[t][n][0] = sum[t][n][1] = sum[t][n][2] = sum[t][n][3] = 0.0f;
    };
    auto step = [&](int slot, int k) {
        const u8* held = ring + slot * slot_bytes + lane * 16;
        uint4 xs[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const int token = n * 8 + g;
            const void* from = NORM ? static_cast<const void*>(normed + token * x_stride + k)
                                    : static_cast<const void*>(held + TILES * 1024 + n * 512);
            xs[n] = token < p.m && k < p.k ? load_uint4(from) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const uint4 a = load_uint4(held + t * 1024), b = load_uint4(held + t * 1024 + 512);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                mma(sum[t][n], a.x, b.x, a.y, b.y, xs[n].x, xs[n].y);
                mma(sum[t][n], a.z, b.z, a.w, b.w, xs[n].z, xs[n].w);
            }
        }
    };
    // The WK partial sums of a row meet in shared memory, in a fixed order.
    auto finish = [&](int row, int stop) {
        float* mine = partial + warp * 8 * NT * ROW_STRIDE;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    mine[(n * 8 + 2 * c + i % 2) * ROW_STRIDE + t * 16 + g + i / 2 * 8] = sum[t][n][i];
        __syncthreads();
        constexpr int OUTPUTS = E == SILU ? ROWS / 2 : ROWS;
#pragma unroll 1
        for (int item = wk * 32 + lane; item < OUTPUTS * p.m; item += p.split * 32) {
            const int i = item % OUTPUTS, token = item / OUTPUTS, r = E == SILU ? i / 8 * 16 + i % 8 : i;
            if (row + r >= stop) continue;
            float value = 0.0f, up = 0.0f;
            for (int w = 0; w < p.split; w++) {
                const float* from = partial + ((wr * p.split + w) * 8 * NT + token) * ROW_STRIDE + r;
                value += from[0];
                if constexpr (E == SILU) up += from[8];
            }
            const float factor = NORM ? factors[token] : p.alpha;
            write_out<E>(p, token, row + r, value * factor, up * factor);
        }
        __syncthreads();
    };

    int slot = 0;
#pragma unroll 1
    for (int turn = 0; turn < turns; turn++) {
        clear();
#pragma unroll 1
        for (int at = 0; at < steps; at++) {
            copy_wait<STEPS_AHEAD - 1>();
            step(slot, (wk + at * p.split) * 32 + c * 8);
            copy_weights(slot);
            copy_x(slot);
            copy_commit();
            if (++slot == STEPS_AHEAD) slot = 0;
        }
        finish(row_of(turn, 0), row_of(turn, 1));
    }
    copy_wait<0>();
}

#define KERNEL(NAME, NT, NORM, E)                                                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS_AT_ONCE) NAME(                                  \
        const HALF* weight, const HALF* x, const float* residual, const int* rows, const float* norm, float eps,    \
        float alpha, const float* bias, void* out, int m, int n, int k, int split) {                                             \
        linear<NT, NORM, E>(Problem{weight, x, residual, rows, norm, eps, alpha, bias, out, m, n, k, split});              \
    }
KERNEL(linear8_store, 1, false, STORE)
KERNEL(linear8_add, 1, false, ADD)
KERNEL(linear8_silu, 1, false, SILU)
KERNEL(linear8_logits, 1, false, LOGITS)
KERNEL(linear16_store, 2, false, STORE)
KERNEL(linear16_add, 2, false, ADD)
KERNEL(linear16_silu, 2, false, SILU)
KERNEL(linear16_logits, 2, false, LOGITS)
KERNEL(norm_linear8_store, 1, true, STORE)
KERNEL(norm_linear8_silu, 1, true, SILU)
KERNEL(norm_linear8_logits, 1, true, LOGITS)
