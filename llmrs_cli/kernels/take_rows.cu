// The tokens that go on to the end of a model: their rows of the residual and of the last attention, side by side.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256) take_rows(
    const int* tokens,       // (R,) rows to take
    const uint4* residual,   // (T, wide) of 16 bytes
    const uint4* mixed,      // (T, narrow)
    uint4* residual_out,     // (R, wide)
    uint4* mixed_out,        // (R, narrow)
    int wide, int narrow) {
    allow_next();
    wait_for_previous();
    const i64 from = tokens[blockIdx.x], to = blockIdx.x;
    for (int i = blockIdx.y * 256 + threadIdx.x; i < wide; i += gridDim.y * 256)
        residual_out[to * wide + i] = residual[from * wide + i];
    for (int i = blockIdx.y * 256 + threadIdx.x; i < narrow; i += gridDim.y * 256)
        mixed_out[to * narrow + i] = mixed[from * narrow + i];
}
