// What follows the sums of linear_wide: a thread's share of a tile, two tokens of a column of eight, and how it is written.
//
// EPILOGUE is the one of linear.cuh that this unit has. Sums come as wgmma leaves them: of tokens g and g + 8 of a warp's 16,
// and of rows 8j + 2c and the next, where g = lane / 4 and c = lane % 4.
#pragma once
#include "norms.cuh"

// Values of 16 rows, a thread's four of them: two of the first eight, which are gates or not, and two eight rows further.
DEVICE float4 load_four(const float* from) {
    const float2 gate = *reinterpret_cast<const float2*>(from), up = *reinterpret_cast<const float2*>(from + 8);
    return make_float4(gate.x, gate.y, up.x, up.y);
}

// What an epilogue reads of 16 rows and two tokens: early, so that nobody waits for it in the end.
struct Before {
    float4 bias, weight, residual[2];
    DEVICE void load(const Problem& p, const Norms& norms, int column) {
        bias = weight = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (column >= p.n) return;
        if (p.bias) bias = load_four(p.bias + column);
        if (EPILOGUE == ADD && norms.weight) weight = load_four(norms.weight + column);
    }
    DEVICE void load_residual(const Problem& p, int token, int column) {
        if constexpr (EPILOGUE == ADD) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                residual[half] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (column < p.n && token + half * 8 < p.m)
                    residual[half] = load_four(static_cast<const float*>(p.out) + i64(token + half * 8) * p.n + column);
            }
        }
    }
};

// Where a thread writes: two tokens, and what it has summed of them.
struct Writer {
    const Problem& p;
    const Norms& norms;
    int token;
    float factor[2], squares[2] = {0.0f, 0.0f};
    DEVICE Writer(const Problem& p, const Norms& norms, int token) : p(p), norms(norms), token(token) {
        factor[0] = factor[1] = p.alpha;
        if (norms.squares) norms.factors(p, token, 8, factor);
    }
    // Sums of 16 rows: [of the first eight, of the others][token]
    DEVICE void write(const Before& before, int column, const float2 (&sums)[2][2]) {
        if (column >= p.n) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = token + half * 8;
            if (t >= p.m) continue;
            const float f = factor[half];
            const float a = sums[0][half].x * f + before.bias.x, b = sums[0][half].y * f + before.bias.y;
            const float c = sums[1][half].x * f + before.bias.z, d = sums[1][half].y * f + before.bias.w;
            if constexpr (EPILOGUE == SILU) {
                const int at = t * (p.n / 2) + column / 16 * 8 + column % 16;
                static_cast<u32*>(p.out)[at / 2] = pack2(__fdividef(a, 1.0f + __expf(-a)) * c * HEADROOM,
                                                         __fdividef(b, 1.0f + __expf(-b)) * d * HEADROOM);
            } else if constexpr (EPILOGUE == STORE) {
                u32* to = static_cast<u32*>(p.out) + (t * p.n + column) / 2;
                to[0] = pack2(a, b), to[4] = pack2(c, d);
            } else {
                const i64 at = i64(t) * p.n + column;
                float2* to = reinterpret_cast<float2*>(static_cast<float*>(p.out) + at);
                float4 v = make_float4(a, b, c, d);
                if constexpr (EPILOGUE == ADD) {
                    const float4 &r = before.residual[half], &w = before.weight;
                    v.x += r.x, v.y += r.y, v.z += r.z, v.w += r.w;
                    if (norms.weight) {
                        u32* left = reinterpret_cast<u32*>(norms.normed + at);
                        left[0] = pack2(v.x * w.x * HEADROOM, v.y * w.y * HEADROOM);
                        left[4] = pack2(v.z * w.z * HEADROOM, v.w * w.w * HEADROOM);
                        squares[half] += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
                    }
                }
                to[0] = make_float2(v.x, v.y), to[4] = make_float2(v.z, v.w);
            }
        }
    }
    // The squares of what this block has written.
    DEVICE void leave(int part) {
        if constexpr (EPILOGUE == ADD) {
            if (norms.weight == nullptr) return;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                squares[half] += __shfl_xor_sync(FULL, squares[half], 1);
                squares[half] += __shfl_xor_sync(FULL, squares[half], 2);
                if (threadIdx.x % 4 == 0 && token + half * 8 < p.m)
                    norms.left[(token + half * 8) * norms.left_stride + part] = squares[half];
                squares[half] = 0.0f;
            }
        }
    }
};
