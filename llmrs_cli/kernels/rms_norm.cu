// RMS norm of float32 rows into 16-bit ones: y = x / sqrt(mean(x²) + eps) · weight. One block a row.
#include "common.cuh"

constexpr int WARPS = 8;

extern "C" __global__ void __launch_bounds__(WARPS * 32) rms_norm(
    const float* x,       // (T, C)
    const int* rows,      // (M,) rows of x to take, or null: 0 … M - 1
    const float* weight,  // (C,)
    HALF* y,              // (M, C)
    int c,                // a multiple of 4
    float eps) {
    __shared__ float scratch[WARPS];
    allow_next();
    wait_for_previous();
    const float* row = x + i64(rows ? rows[blockIdx.x] : blockIdx.x) * c;
    float squares = 0.0f;
    for (int i = threadIdx.x * 4; i < c; i += WARPS * 128) {
        const float4 v = *reinterpret_cast<const float4*>(row + i);
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float r = rsqrtf(block_sum<WARPS>(squares, scratch) / c + eps);
    for (int i = threadIdx.x * 4; i < c; i += WARPS * 128) {
        const float4 v = *reinterpret_cast<const float4*>(row + i);
        const float4 w = *reinterpret_cast<const float4*>(weight + i);
        *reinterpret_cast<uint2*>(y + i64(blockIdx.x) * c + i) =
            make_uint2(pack2(v.x * r * w.x, v.y * r * w.y), pack2(v.z * r * w.z, v.w * r * w.w));
    }
}
