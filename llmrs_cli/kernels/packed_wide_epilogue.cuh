// What follows the sums of packed_wide: a warp has 16 rows of W, and of them come the sums of eight tokens at a time.
//
// EPILOGUE is the one of linear.cuh that this unit has. Sums come as wgmma leaves them: of rows g and g + 8 (i / 2), and of
// tokens 2c + i % 2, where g = lane / 4 and c = lane % 4.
#pragma once
#include "linear.cuh"
#include "mma.cuh"

// How a warp writes its 16 rows.
struct Writer {
    const Problem& p;
    int row, g, c;  // the first of the 16
    float bias[2];
    DEVICE Writer(const Problem& p, int row) : p(p), row(row), g(threadIdx.x % 32 / 4), c(threadIdx.x % 4) {
#pragma unroll
        for (int i = 0; i < 2; i++) bias[i] = p.bias && row < p.n ? p.bias[row + g + i * 8] : 0.0f;
    }
    // Of eight tokens: what is there, for ADD.
    DEVICE void load(int token, float (&residual)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = token + 2 * c + i % 2;
            residual[i] = 0.0f;
            if (EPILOGUE == ADD && t < p.m && row < p.n)
                residual[i] = static_cast<const float*>(p.out)[t * p.n + row + g + i / 2 * 8];
        }
    }
    DEVICE void write(int token, const float (&sum)[4], const float (&residual)[4]) const {
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = sum[i] * p.alpha + bias[i / 2];
        if constexpr (EPILOGUE == STORE || EPILOGUE == SILU) {
            const int t = token + g;  // after transposing, a lane has two rows of one token
            const bool live = t < p.m && row < p.n;
            if constexpr (EPILOGUE == STORE) {
                const u32 upper = transposed(pack2(y[0], y[1])), lower = transposed(pack2(y[2], y[3]));
                u32* to = static_cast<u32*>(p.out) + (t * p.n + row) / 2 + c;
                if (live) to[0] = upper, to[4] = lower;
            } else {
#pragma unroll
                for (int i = 0; i < 2; i++) y[i] = __fdividef(y[i], 1.0f + __expf(-y[i])) * y[i + 2] * HEADROOM;
                const u32 pair = transposed(pack2(y[0], y[1]));
                if (live) static_cast<u32*>(p.out)[(t * (p.n / 2) + row / 2) / 2 + c] = pair;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int t = token + 2 * c + i % 2;
                if (t < p.m && row < p.n)
                    static_cast<float*>(p.out)[t * p.n + row + g + i / 2 * 8] = y[i] + residual[i];
            }
        }
    }
};
