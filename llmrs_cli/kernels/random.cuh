// Random bits, logarithm and exponential of the sampler, bit for bit as the reference defines them.
//
// Every operation is rounded by itself: the _rn intrinsics keep the compiler from fusing a product and a sum.
#pragma once
#include "common.cuh"

struct Words {
    u32 x[4];
};

// Philox4x32-10: key (low, high), counter (position, group, choice, 0).
DEVICE Words philox(u32 k0, u32 k1, u32 c0, u32 c1, u32 c2) {
    u32 c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u32 low0 = c0 * 0xD2511F53u, high0 = __umulhi(c0, 0xD2511F53u);
        const u32 low1 = c2 * 0xCD9E8D57u, high1 = __umulhi(c2, 0xCD9E8D57u);
        c0 = high1 ^ c1 ^ k0, c1 = low1;
        c2 = high0 ^ c3 ^ k1, c3 = low0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return Words{{c0, c1, c2, c3}};
}

DEVICE float constant(u32 bits) { return __uint_as_float(bits); }

DEVICE float log1p_reduced(float f, int k) {
    float p = constant(0xBD9C5AC1u);
    p = __fadd_rn(__fmul_rn(p, f), constant(0x3E02ADB6u));
    p = __fadd_rn(__fmul_rn(p, f), constant(0xBE06C2A1u));
    p = __fadd_rn(__fmul_rn(p, f), constant(0x3E116D0Eu));
    p = __fadd_rn(__fmul_rn(p, f), constant(0xBE2A3922u));
    p = __fadd_rn(__fmul_rn(p, f), constant(0x3E4CD004u));
    p = __fadd_rn(__fmul_rn(p, f), constant(0xBE800113u));
    p = __fadd_rn(__fmul_rn(p, f), constant(0x3EAAAAAAu));
    const float z = __fmul_rn(f, f), steps = __int2float_rn(k);
    float q = __fmul_rn(__fmul_rn(f, p), z);
    q = __fadd_rn(q, __fmul_rn(steps, constant(0x35BFBE8Eu)));
    q = __fsub_rn(q, __fmul_rn(0.5f, z));
    return __fadd_rn(__fadd_rn(f, q), __fmul_rn(steps, constant(0x3F317200u)));
}

DEVICE float log_exact(float x) {
    const u32 bits = __float_as_uint(x);
    const int k = int(bits - 0x3F3504F3u) >> 23;
    return log1p_reduced(__fsub_rn(__uint_as_float(bits - (u32(k) << 23)), 1.0f), k);
}

// A word as a number in (0, 1).
DEVICE float uniform(u32 x) {
    return fminf(__fmul_rn(__fadd_rn(__uint2float_rn(x), 0.5f), 0x1p-32f), 1.0f - 0x1p-24f);
}

DEVICE float gumbel(float v) {
    const float e = v < 0.25f ? log1p_reduced(-v, 0) : log_exact(__fsub_rn(1.0f, v));
    return -log_exact(-e);
}

// 2³² · exp(d) as an integer, d ≤ 0 or NaN; 2³² itself, which no other d comes near, as 2³² - 1.
DEVICE u32 mass32(float d) {
    d = fmaxf(d, -24.0f);  // 0 from -23 on, and of NaN
    const float magic = 0x1.8p23f, steps = __fadd_rn(__fmul_rn(d, constant(0x3FB8AA3Bu)), magic);
    const float k = __fsub_rn(steps, magic);
    const float r = __fsub_rn(__fsub_rn(d, __fmul_rn(k, constant(0x3F317200u))), __fmul_rn(k, constant(0x35BFBE8Eu)));
    float p = constant(0x3AB5121Au);
    p = __fadd_rn(__fmul_rn(p, r), constant(0x3C091CF1u));
    p = __fadd_rn(__fmul_rn(p, r), constant(0x3D2AAC79u));
    p = __fadd_rn(__fmul_rn(p, r), constant(0x3E2AAA49u));
    p = __fadd_rn(__fmul_rn(p, r), constant(0x3EFFFFFEu));
    const float y = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(r, r), p), r), 1.0f);
    // The last bits of `steps` are those of k.
    return __float2uint_rn(__uint_as_float(__float_as_uint(y) + (__float_as_uint(steps) << 23) + (32u << 23)));
}

DEVICE u64 whole_mass(u32 mass) { return u64(mass) + (mass == ~0u); }
