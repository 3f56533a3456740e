// Norms around products of some tokens, which need no kernel of their own: what a product takes from the one before it, and
// leaves to the one after it. Not how results are written (wide_epilogue.cuh, packed_wide_epilogue.cuh).
//
// The product before leaves its sums times the norm's weights, and of each token the squares of what it has written, in parts:
// as many as there are blocks, or rows by 16. The product after scales a token's sums by 1 / rms.
#pragma once
#include "linear.cuh"

// Null where there is none.
struct Norms {
    const float* squares;  // (M, stride) of which `parts` count: sums of squares of x before its norm's weights
    int parts, stride;
    float eps;
    const float* weight;   // (N,) of the norm that follows
    HALF* normed;          // (M, N)
    float* left;           // (M, left_stride): squares of what is left
    int left_stride;

    // alpha / rms of COUNT tokens, `apart` from each other; the four lanes of a group share the work, much of it on its way at
    // once, and the result. Tokens past the last have its result.
    template <int COUNT> DEVICE void factors(const Problem& p, int token, int apart, float (&factor)[COUNT]) const {
        constexpr int AHEAD = 7;
        float sum[COUNT] = {};
#pragma unroll 1
        for (int from = threadIdx.x % 4 * 4; from < parts; from += 16 * AHEAD) {
            float4 v[COUNT][AHEAD];
#pragma unroll
            for (int t = 0; t < COUNT; t++)
#pragma unroll
                for (int i = 0; i < AHEAD; i++) {
                    v[t][i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (from + i * 16 < parts)
                        v[t][i] = *reinterpret_cast<const float4*>(squares + min(token + t * apart, p.m - 1) * stride + from + i * 16);
                }
#pragma unroll
            for (int t = 0; t < COUNT; t++)
#pragma unroll
                for (int i = 0; i < AHEAD; i++) {
                    const int left = parts - from - i * 16;
                    sum[t] += v[t][i].x + (left > 1 ? v[t][i].y : 0.0f) + (left > 2 ? v[t][i].z : 0.0f) +
                              (left > 3 ? v[t][i].w : 0.0f);
                }
        }
#pragma unroll
        for (int t = 0; t < COUNT; t++) {
            sum[t] += __shfl_xor_sync(FULL, sum[t], 1);
            sum[t] += __shfl_xor_sync(FULL, sum[t], 2);
            factor[t] = rsqrtf(sum[t] / p.k + eps) / HEADROOM * p.alpha;
        }
    }
};
