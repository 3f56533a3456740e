// RMS norm of float32 rows into 16-bit ones: y = x / sqrt(mean(x²) + eps) · weight. One block a row.
//
// A row of up to HELD · STEP values is read once, all of it at the same time; its weights are there before.
#include "common.cuh"

constexpr int WARPS = 8, STEP = WARPS * 128, HELD = 4;

DEVICE float4 load_four(const float* p) { return *reinterpret_cast<const float4*>(p); }
DEVICE float square_sum(const float4& v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }
DEVICE uint2 scaled(const float4& v, const float4& w, float r) {
    return make_uint2(pack2(v.x * r * w.x, v.y * r * w.y), pack2(v.z * r * w.z, v.w * r * w.w));
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) rms_norm(
    const float* x,       // (M, C)
    const float* weight,  // (C,)
    HALF* y,              // (M, C)
    int c,                // a multiple of 4
    float eps) {
    __shared__ float scratch[WARPS];
    const int own = threadIdx.x * 4;
    float4 v[HELD], w[HELD];
    allow_next();
#pragma unroll
    for (int h = 0; h < HELD; h++)
        if (own + h * STEP < c) w[h] = load_four(weight + own + h * STEP);
    wait_for_previous();
    const float* row = x + i64(blockIdx.x) * c;
    float squares = 0.0f;
#pragma unroll
    for (int h = 0; h < HELD; h++)
        if (own + h * STEP < c) v[h] = load_four(row + own + h * STEP);
#pragma unroll
    for (int h = 0; h < HELD; h++)
        if (own + h * STEP < c) squares += square_sum(v[h]);
    for (int i = own + HELD * STEP; i < c; i += STEP) squares += square_sum(load_four(row + i));
    const float r = rsqrtf(block_sum<WARPS>(squares, scratch) / c + eps);
    uint2* to = reinterpret_cast<uint2*>(y + i64(blockIdx.x) * c);
#pragma unroll
    for (int h = 0; h < HELD; h++)
        if (own + h * STEP < c) to[(own + h * STEP) / 4] = scaled(v[h], w[h], r);
    for (int i = own + HELD * STEP; i < c; i += STEP) to[i / 4] = scaled(load_four(row + i), load_four(weight + i), r);
}
