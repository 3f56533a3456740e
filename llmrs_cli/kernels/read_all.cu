// The ceiling that other kernels are measured against: reads a buffer once, as fast as the memory gives it.
#include "common.cuh"

constexpr int UNROLL = 8;

extern "C" __global__ void __launch_bounds__(512) read_all(
    const uint4* data,  // (count,)
    u32* out,           // (blocks,) so that the loads are not dropped
    i64 count) {
    allow_next();
    const i64 begin = count * blockIdx.x / gridDim.x, end = count * (blockIdx.x + 1) / gridDim.x;
    u32 mixed = 0;
    for (i64 i = begin + threadIdx.x; i < end; i += 512 * UNROLL) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            v[u] = i + u * 512 < end ? load_stream(data + i + u * 512) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) mixed ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    wait_for_previous();
    if (mixed == 0x12345678u) out[blockIdx.x] = mixed;
}
