// Shared by the kernels of few tokens: the problem, the norm before the product and what follows it.
//
// Prologue  plain: x (M, K) 16-bit.   norm: residual (M, K) float32, RMS norm into shared memory.
// Epilogue  store: 16-bit y (M, N), + bias.   add: residual (M, N) float32 += y + bias.
//           silu: W (2F, K) holds 8 rows of gate, 8 of up, and so on: one stream of memory, and a tile of 16 rows
//           is 8 pairs; y (M, F) = silu(gate) · up · HEADROOM.   logits: float32 y (M, N).
#pragma once
#include "common.cuh"

enum Epilogue { STORE, ADD, SILU, LOGITS };

struct Problem {
    const HALF* weight;      // (N, K)
    const HALF* x;           // (M, K), plain prologue
    const float* residual;   // (M, K), norm prologue
    const float* norm;       // (K,), norm prologue
    float eps;
    float alpha;             // on x · Wᵀ
    const float* bias;       // (N,) or null
    void* out;               // (M, N) 16-bit or float32; for SILU (M, F)
    int m, n, k;             // for SILU n = 2F
    // How the work is spread. The host divides: a kernel that begins with integer divisions begins late.
    int split_log;           // WK = 1 << split_log: warps of a block along K, a divisor of WARPS
    int turns;               // of a warp over rows, where they are counted
    int held;                // turns whose sums wait in shared memory before the warps of a block meet
    int early;               // steps of weights that are on their way before wait_for_previous()
    u64 share;               // rows (in units that stay together) of one pass or block, times 2³²
};

// The M residual rows times the norm's weights into shared memory, 16-bit, `stride` elements a row. The factor
// 1 / rms of a token commutes with the product, so nobody waits for its sum: it goes to `factors` (M,), which is
// complete after the next barrier but one, and the epilogue applies it.
DEVICE void scale_row(HALF* shared, const float4& v, const float4& w, float& squares) {
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    *reinterpret_cast<uint2*>(shared) = make_uint2(pack2(v.x * w.x * HEADROOM, v.y * w.y * HEADROOM),
                                                   pack2(v.z * w.z * HEADROOM, v.w * w.w * HEADROOM));
}

// What a thread has of the residual of a single token, and of the norm's weights. A multiprocessor's loads return in the
// order in which it asked: so the residual is asked for before those weights of the product that may come later.
template <int COUNT> struct Row {
    float4 v[COUNT], w[COUNT];
    static DEVICE int column(int i) { return (threadIdx.x + i * WARPS * 32) * 4; }
    DEVICE void load(float4 (&to)[COUNT], const float* from, int k) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (column(i) < k) to[i] = *reinterpret_cast<const float4*>(from + column(i));
    }
    DEVICE void load_weights(const Problem& p) { load(w, p.norm, p.k); }
    DEVICE void load_residual(const Problem& p) {
        if (p.m == 1) load(v, p.residual, p.k);
    }
};

template <int MAX_M, int COUNT, int UNROLL = 4>
DEVICE void norm_rows(const Problem& p, const Row<COUNT>& single, HALF* shared, int stride, float* scratch, float* factors) {
    constexpr int STEP = WARPS * 128;
    float squares[MAX_M] = {};
    auto row_of = [&](int t) { return p.residual + i64(t) * p.k; };
    if (p.m == 1) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (single.column(i) < p.k) scale_row(shared + single.column(i), single.v[i], single.w[i], squares[0]);
#pragma unroll 1
        for (int k = COUNT * STEP + threadIdx.x * 4; k < p.k; k += STEP)
            scale_row(shared + k, *reinterpret_cast<const float4*>(p.residual + k),
                      *reinterpret_cast<const float4*>(p.norm + k), squares[0]);
    } else {  // several tokens in flight at once
#pragma unroll 1
        for (int k = threadIdx.x * 4; k < p.k; k += STEP) {
            const float4 w = *reinterpret_cast<const float4*>(p.norm + k);
#pragma unroll
            for (int t0 = 0; t0 < MAX_M; t0 += UNROLL) {
                float4 v[UNROLL];
#pragma unroll
                for (int u = 0; u < UNROLL; u++)
                    if (t0 + u < p.m) v[u] = *reinterpret_cast<const float4*>(row_of(t0 + u) + k);
#pragma unroll
                for (int u = 0; u < UNROLL; u++)
                    if (t0 + u < p.m)
                        scale_row(shared + (t0 + u) * stride + k, v[u], w, squares[t0 + u]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < MAX_M; t++) {
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

#define KERNEL_OF(NAME, BLOCKS, FUNCTION)                                                                           \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) NAME(                                          \
        const HALF* weight, const HALF* x, const float* residual, const float* norm, float eps, float alpha,        \
        const float* bias, void* out, int m, int n, int k, int split_log, int turns, int held, int early,           \
        u64 share) {                                                                                                 \
        FUNCTION(Problem{weight, x, residual, norm, eps, alpha, bias, out, m, n, k, split_log, turns, held,       \
                         early, share});                                                                             \
    }
