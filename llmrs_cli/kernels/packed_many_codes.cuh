// 4-bit tiles of 16 rows (marlin_layout.py draws them) made 16-bit rows of W in shared memory, as wgmma_shared.cuh reads them.
//
// A value is (code - zero) · scale, rounded once to the 16-bit type: what dequantise.cu makes of it. To float16 two values at
// a time: codes minus zeros are exact, and one multiplication rounds. Where that could be more than float16 holds, and to
// bfloat16, which a scale of 11 bits does not fit, by way of float32: on mantissa bits beside an exponent a code reads 128 +
// code, or 2048 + code, and one multiplication with an addition takes away (128 + zero) · scale. Both products are exact.
#pragma once
#include "many_epilogue.cuh"
#include "packed4.cuh"

// Codes of row g stand at bits 16 … 19 of a word that is turned by whole bytes, those of row g + 8 at bits 12 … 15.
constexpr u32 UPPER_CODE = 0x000f0000, UPPER_ZERO = 0x001f0000, UPPER_BASE = 0x43000000;  // 128
constexpr u32 LOWER_CODE = 0x0000f000, LOWER_ZERO = 0x0001f000, LOWER_BASE = 0x45000000;  // 2048
constexpr int HALF_GROUPS = GROUP < 64 ? 64 / GROUP : 1;  // that 64 columns of a tile have

// Rounded to the 16-bit type as pack2 does, numbers that are too large for it to the largest, in one instruction.
DEVICE u32 pack_saturated(float low, float high) {
    u32 pair;
#if BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

// A lane's part of 64 columns of a tile: four steps of codes, and the heads of rows g and g + 8.
struct Narrow {
    uint4 codes;
    uint2 heads[HALF_GROUPS];
    DEVICE Narrow(const u8* tile, int half) {
        const int lane = threadIdx.x % 32, first = GROUP < 128 ? half * HALF_GROUPS : 0;
        codes = read_codes(tile, half, lane);
#pragma unroll
        for (int i = 0; i < HALF_GROUPS; i++)
            heads[i] = *reinterpret_cast<const uint2*>(tile + CODE_BYTES + (first + i) * HEAD_BYTES + lane / 4 * 8);
    }
};

// What the codes of one row and group need.
struct Scaling {
    float scale, offset;
    DEVICE Scaling(u32 head, u32 base_and_zero)
        : scale(float_of_f16(u16(head))), offset(-__uint_as_float(base_and_zero) * scale) {}
    DEVICE float operator()(u32 base_and_code) const { return __fmaf_rn(__uint_as_float(base_and_code), scale, offset); }
};

// One step: rows g, g + 8, g, g + 8; columns 2c, 2c, 2c + 8, 2c + 8 and the next ones.
DEVICE void widen(u32 word, const Scaling& upper, const Scaling& lower, u32 (&a)[4]) {
    auto turned = [&](int bytes) { return __funnelshift_r(word, word, bytes % 4 * 8); };
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 g[2] = {turned(half + 2), turned(half)}, below[2] = {turned(half + 3), turned(half + 1)};
        a[2 * half] = pack_saturated(upper(mask_or(g[0], UPPER_CODE, UPPER_BASE)), upper(mask_or(g[1], UPPER_CODE, UPPER_BASE)));
        a[2 * half + 1] =
            pack_saturated(lower(mask_or(below[0], LOWER_CODE, LOWER_BASE)), lower(mask_or(below[1], LOWER_CODE, LOWER_BASE)));
    }
}

#if !BF16
constexpr u32 TOO_LARGE = 0x6c00;  // 4096: a smaller scale times 16 at most is a float16 number

// Both halves of a pair times those of another, each rounded once.
DEVICE u32 multiply_pairs(u32 a, u32 b) {
    u32 product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
#endif

// For a whole warp: 64 columns of a tile to its 16 lines of 128 bytes at `rows`.
DEVICE void widen_half(const Narrow& narrow, u32 rows) {
    const int lane = threadIdx.x % 32;
    const u32 own = lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16;  // pieces of a line are told apart by an exclusive or
    auto store = [&](int group, const auto& widened) {
#pragma unroll
        for (int step = group * 4 / HALF_GROUPS; step < (group + 1) * 4 / HALF_GROUPS; step++) {
            u32 a[4];
            widened(word_of(narrow.codes, step), a);
            store_matrices(rows + (own ^ step * 32), a[0], a[1], a[2], a[3]);
        }
    };
#if !BF16
    bool large = false;
#pragma unroll
    for (int group = 0; group < HALF_GROUPS; group++)
        large |= (narrow.heads[group].x & 0x7fffu) >= TOO_LARGE || (narrow.heads[group].y & 0x7fffu) >= TOO_LARGE;
    if (!__any_sync(FULL, large)) {
#pragma unroll
        for (int group = 0; group < HALF_GROUPS; group++) {
            const uint2 words = narrow.heads[group];
            Head head;
            head.offset[0] = (words.x >> 16) * EVEN_UNIT + (EVEN_BASE | SIGNS);
            head.offset[1] = (words.y >> 16) * ODD_UNIT + (ODD_BASE | SIGNS);
            const u32 scales[2] = {(words.x & 0xffffu) * 0x10001u, (words.y & 0xffffu) * 0x10001u};
            store(group, [&](u32 word, u32 (&a)[4]) {
                decode(word, head, a);
#pragma unroll
                for (int pair = 0; pair < 4; pair++) a[pair] = multiply_pairs(a[pair], scales[pair % 2]);
            });
        }
        return;
    }
#endif
#pragma unroll
    for (int group = 0; group < HALF_GROUPS; group++) {
        const uint2 head = narrow.heads[group];
        const Scaling upper(head.x, mask_or(head.x, UPPER_ZERO, UPPER_BASE));
        const Scaling lower(head.y, mask_or(head.y >> 4, LOWER_ZERO, LOWER_BASE));
        store(group, [&](u32 word, u32 (&a)[4]) { widen(word, upper, lower, a); });
    }
}
