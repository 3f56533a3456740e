// What follows the sums of packed_wide: a warp has 16 rows of W, and of them come the sums of eight tokens at a time.
//
// EPILOGUE is the one of linear.cuh that this unit has. Sums come as wgmma leaves them: of rows g and g + 8 (i / 2), and of
// tokens 2c + i % 2, where g = lane / 4 and c = lane % 4.
#pragma once
#include "linear.cuh"
#include "mma.cuh"

// What a product takes from the norm before it, and leaves to the norm after it, as in wide_epilogue.cuh; null where there is none.
struct Norms {
    const float* squares;  // (M, stride) of which `parts` count: sums of squares of x before its norm's weights
    int parts, stride;
    float eps;
    const float* weight;   // (N,) of the norm that follows
    HALF* normed;          // (M, N)
    float* left;           // (M, left_stride): squares of what is left, of each 16 rows
    int left_stride;

    // alpha / rms of every token, by THREADS threads, four for a token; complete when they have met.
    template <int THREADS> DEVICE void factors(const Problem& p, float* to) const {
        constexpr int AHEAD = 7;
        const int own = threadIdx.x / 4, quarter = threadIdx.x % 4;
#pragma unroll 1
        for (int first = 0; first < p.m; first += THREADS / 4) {
            const float* from = squares + min(first + own, p.m - 1) * stride;
            float sum = 0.0f;
#pragma unroll 1
            for (int at = quarter * 4; at < parts; at += 16 * AHEAD) {
                float4 v[AHEAD];
#pragma unroll
                for (int i = 0; i < AHEAD; i++) {
                    v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (at + i * 16 < parts) v[i] = *reinterpret_cast<const float4*>(from + at + i * 16);
                }
#pragma unroll
                for (int i = 0; i < AHEAD; i++) {
                    const int more = parts - at - i * 16;
                    sum += v[i].x + (more > 1 ? v[i].y : 0.0f) + (more > 2 ? v[i].z : 0.0f) + (more > 3 ? v[i].w : 0.0f);
                }
            }
            sum += __shfl_xor_sync(FULL, sum, 1);
            sum += __shfl_xor_sync(FULL, sum, 2);
            if (quarter == 0 && first + own < p.m) to[first + own] = rsqrtf(sum / p.k + eps) / HEADROOM * p.alpha;
        }
    }
};

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
