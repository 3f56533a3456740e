// What every kernel shares: 16-bit storage types, vector loads, reductions, programmatic launch.
// No CUDA headers: NVRTC then needs none on the machine, and compiles in a tenth of a second.
//
// HALF names the 16-bit storage type as raw bits; macro BF16 chooses bfloat16 (1) or float16 (0).
// Arithmetic is float32 throughout.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef u16 HALF;

#define DEVICE __device__ __forceinline__

#ifndef BF16
#define BF16 1
#endif

constexpr u32 FULL = 0xffffffffu;

// float16 has no room for massive activations: what a norm has not yet scaled down and what a gate multiplied is
// stored divided by 16, and the product that reads it multiplies by 16.
constexpr float HEADROOM = BF16 ? 1.0f : 1.0f / 16;

// ---- 16-bit values ----------------------------------------------------------------------------------

// float16 whatever the storage type is.
DEVICE float float_of_f16(u16 bits) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
}

DEVICE float to_float(HALF bits) {
#if BF16
    return __uint_as_float(u32(bits) << 16);
#else
    return float_of_f16(bits);
#endif
}

// Two packed values → (low, high).
DEVICE float2 unpack2(u32 pair) {
#if BF16
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
#else
    return make_float2(to_float(HALF(pair & 0xffffu)), to_float(HALF(pair >> 16)));
#endif
}

// Round to nearest even. float16 saturates at ±65504: a massive activation must not become inf.
DEVICE u32 pack2(float low, float high) {
    u32 pair;
#if BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    // fminf/fmaxf drop NaN, so a NaN keeps its own path.
    low = low != low ? low : fminf(fmaxf(low, -65504.0f), 65504.0f);
    high = high != high ? high : fminf(fmaxf(high, -65504.0f), 65504.0f);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

DEVICE HALF to_half(float value) { return HALF(pack2(value, 0.0f) & 0xffffu); }

// ---- loads ------------------------------------------------------------------------------------------

// Weights are read once: keep them out of L1 and first to leave L2.
DEVICE uint4 load_stream(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

DEVICE uint4 load_uint4(const void* p) {
    return *reinterpret_cast<const uint4*>(p);
}

// Ask for the line of L2 that holds p.
DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" :: "l"(p)); }

// Into L1, for what no kernel changes.
DEVICE void touch(const float* p) {
    float v;
    asm volatile("ld.global.ca.f32 %0, [%1];" : "=f"(v) : "l"(p));
}

DEVICE u32 shared_address(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

// 16 bytes global → shared; writes zeros where !valid (the address is then not read).
DEVICE void copy_async(u32 shared, const void* global, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(shared), "l"(global), "r"(valid ? 16 : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- reductions -------------------------------------------------------------------------------------

DEVICE float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(FULL, v, step);
    return v;
}

DEVICE float warp_max(float v) {
#pragma unroll
    for (int step = 16; step; step >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL, v, step));
    return v;
}

// Sum over a block of COUNT warps, given to every thread; `scratch` holds COUNT floats.
template <int COUNT> DEVICE float block_sum(float v, float* scratch) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < COUNT; w++) total += scratch[w];
    __syncthreads();
    return total;
}

// ---- programmatic dependent launch ------------------------------------------------------------------
// Every block waits before it reads what an earlier kernel wrote, and writes only after it.

DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void allow_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
