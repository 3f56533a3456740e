// What follows the sums of layer_wide's products whose columns are shared out: a thread's two tokens, eight rows a time.
//
// STORE leaves 16-bit values, ADD adds to the residual and leaves what the norm that follows needs (wide_epilogue.cuh).
#pragma once
#include "wide_epilogue.cuh"

// What is read of eight rows before their sums have met.
struct BeforeEight {
    float2 by_row;       // bias, or weights of the norm that follows
    float2 residual[2];  // of each token
};

template <Epilogue THEN> struct EightWriter {
    const Problem& p;
    const Norms& norms;
    int token;
    float factor[2], squares[2] = {0.0f, 0.0f};
    DEVICE EightWriter(const Problem& p, const Norms& norms, int token) : p(p), norms(norms), token(token) {
        norms.factors(p, token, factor);
    }
    DEVICE float2* residual(int half, int column) const {
        return reinterpret_cast<float2*>(static_cast<float*>(p.out) + i64(token + half * 8) * p.n + column);
    }
    DEVICE BeforeEight load(int column) const {
        BeforeEight before{};
        if (column >= p.n) return before;
        const float* by_row = THEN == ADD ? norms.weight : p.bias;
        if (by_row) before.by_row = *reinterpret_cast<const float2*>(by_row + column);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (THEN == ADD && token + half * 8 < p.m) before.residual[half] = *residual(half, column);
        return before;
    }
    // sums: two rows of the first token, then of the second.
    DEVICE void write(const BeforeEight& before, int column, const float (&sums)[4]) {
        if (column >= p.n) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (token + half * 8 >= p.m) continue;
            const i64 at = i64(token + half * 8) * p.n + column;
            float a = sums[half * 2] * factor[half], b = sums[half * 2 + 1] * factor[half];
            if constexpr (THEN == STORE) {
                static_cast<u32*>(p.out)[at / 2] = pack2(a + before.by_row.x, b + before.by_row.y);
            } else {
                a += before.residual[half].x, b += before.residual[half].y;
                *residual(half, column) = make_float2(a, b);
                if (norms.weight == nullptr) continue;
                reinterpret_cast<u32*>(norms.normed)[at / 2] =
                    pack2(a * before.by_row.x * HEADROOM, b * before.by_row.y * HEADROOM);
                squares[half] += a * a + b * b;
            }
        }
    }
    // The squares of what this block has written.
    DEVICE void leave(int part) const {
        if constexpr (THEN == ADD) {
            if (norms.weight == nullptr) return;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float sum = squares[half];
                sum += __shfl_xor_sync(FULL, sum, 1);
                sum += __shfl_xor_sync(FULL, sum, 2);
                if (threadIdx.x % 4 == 0 && token + half * 8 < p.m)
                    norms.left[(token + half * 8) * norms.left_stride + part] = sum;
            }
        }
    }
};
