// What follows the sums of packed_wide: a warp has 16 rows of W, and of them come the sums of eight tokens at a time.
//
// EPILOGUE is the one of linear.cuh that this unit has. Sums come as wgmma leaves them: of rows g and g + 8 (i / 2), and of
// tokens 2c + i % 2, where g = lane / 4 and c = lane % 4.
#pragma once
#include "mma.cuh"
#include "norms.cuh"

// alpha / rms of every token, by THREADS threads, four for a token; complete when they have met.
template <int THREADS> DEVICE void find_factors(const Problem& p, const Norms& norms, float* to) {
#pragma unroll 1
    for (int first = 0; first < p.m; first += THREADS / 4) {
        const int token = first + threadIdx.x / 4;
        float factor[1];
        norms.factors(p, token, 0, factor);
        if (threadIdx.x % 4 == 0 && token < p.m) to[token] = factor[0];
    }
}

// How a warp writes its 16 rows.
struct Writer {
    const Problem& p;
    const Norms& norms;
    const float* factors;  // (M,) on the sums, or null: alpha
    int row, g, c;         // the first of the 16
    float bias[2], weight[2];
    DEVICE Writer(const Problem& p, const Norms& norms, const float* factors, int row)
        : p(p), norms(norms), factors(factors), row(row), g(threadIdx.x % 32 / 4), c(threadIdx.x % 4) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bias[i] = p.bias && row < p.n ? p.bias[row + g + i * 8] : 0.0f;
            weight[i] = EPILOGUE == ADD && norms.weight && row < p.n ? norms.weight[row + g + i * 8] : 0.0f;
        }
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
        float y[4], factor[2] = {p.alpha, p.alpha};
        if (factors) factor[0] = factors[token + 2 * c], factor[1] = factors[token + 2 * c + 1];
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = sum[i] * factor[i % 2] + bias[i / 2];
        if constexpr (EPILOGUE == STORE || EPILOGUE == SILU) {
            if constexpr (EPILOGUE == STORE) {
                store(static_cast<HALF*>(p.out), token, y);
            } else {
                const int t = token + g;  // after transposing, a lane has two rows of one token
                const bool live = t < p.m && row < p.n;
#pragma unroll
                for (int i = 0; i < 2; i++) y[i] = __fdividef(y[i], 1.0f + __expf(-y[i])) * y[i + 2] * HEADROOM;
                const u32 pair = transposed(pack2(y[0], y[1]));
                if (live) static_cast<u32*>(p.out)[(t * (p.n / 2) + row / 2) / 2 + c] = pair;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int t = token + 2 * c + i % 2;
                y[i] += residual[i];
                if (t < p.m && row < p.n) static_cast<float*>(p.out)[t * p.n + row + g + i / 2 * 8] = y[i];
            }
            if (EPILOGUE == ADD && norms.weight) leave(token, y);
        }
    }
    // 16-bit values of eight tokens.
    DEVICE void store(HALF* out, int token, const float (&y)[4]) const {
        const u32 upper = transposed(pack2(y[0], y[1])), lower = transposed(pack2(y[2], y[3]));
        const int t = token + g;
        u32* to = reinterpret_cast<u32*>(out) + (t * p.n + row) / 2 + c;
        if (t < p.m && row < p.n) to[0] = upper, to[4] = lower;
    }
    // What the norm after these sums needs of them.
    DEVICE void leave(int token, const float (&y)[4]) const {
        float scaled[4], squares[2];
#pragma unroll
        for (int i = 0; i < 4; i++) scaled[i] = y[i] * weight[i / 2] * HEADROOM;
        store(norms.normed, token, scaled);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            squares[i] = y[i] * y[i] + y[i + 2] * y[i + 2];
#pragma unroll
            for (int step = 4; step < 32; step *= 2) squares[i] += __shfl_xor_sync(FULL, squares[i], step);
            const int t = token + 2 * c + i;
            if (g == 0 && t < p.m && row < p.n) norms.left[t * norms.left_stride + row / 16] = squares[i];
        }
    }
};
