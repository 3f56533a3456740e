// y = silu(gate) · up · HEADROOM over rows that hold 8 values of gate, 8 of up, and so on. Eight values a thread.
#include "common.cuh"

DEVICE u32 gated(u32 gate, u32 up) {
    const float2 g = unpack2(gate), u = unpack2(up);
    return pack2(g.x / (1.0f + __expf(-g.x)) * u.x * HEADROOM, g.y / (1.0f + __expf(-g.y)) * u.y * HEADROOM);
}

extern "C" __global__ void __launch_bounds__(256) silu_mul(
    const HALF* gate_up,  // (T, 2F)
    HALF* y,              // (T, F)
    int f) {              // a multiple of 8
    allow_next();
    wait_for_previous();
    const int i = (blockIdx.x * 256 + threadIdx.x) * 8;
    if (i >= f) return;
    const HALF* row = gate_up + i64(blockIdx.y) * 2 * f + 2 * i;
    const uint4 g = load_uint4(row), u = load_uint4(row + 8);
    *reinterpret_cast<uint4*>(y + i64(blockIdx.y) * f + i) =
        make_uint4(gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w));
}
