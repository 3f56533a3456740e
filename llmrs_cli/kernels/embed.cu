// The residual stream of a step: rows of the embedding table, widened to float32; zeros for padding. One block a token.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256) embed(
    const HALF* table,  // (V, C)
    const int* ids,     // (T,) or -1: padding
    float* out,         // (T, C)
    int c) {            // a multiple of 8
    // The first kernel of a step: those after it may read what describes the step before they wait.
    wait_for_previous();
    allow_next();
    const int id = ids[blockIdx.x];
    const HALF* row = table + i64(id) * c;
    for (int i = threadIdx.x * 8; i < c; i += 256 * 8) {
        const uint4 v = id < 0 ? make_uint4(0, 0, 0, 0) : load_uint4(row + i);
        float4* to = reinterpret_cast<float4*>(out + i64(blockIdx.x) * c + i);
        const float2 a = unpack2(v.x), b = unpack2(v.y), d = unpack2(v.z), e = unpack2(v.w);
        to[0] = make_float4(a.x, a.y, b.x, b.y);
        to[1] = make_float4(d.x, d.y, e.x, e.y);
    }
}
