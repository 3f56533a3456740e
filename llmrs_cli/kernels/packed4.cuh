// A 4-bit tile of 16 rows and 128 columns as a warp reads it; marlin_layout.py draws it.
//
// With g = lane / 4 and c = lane % 4, the word of step s gives a lane the four A registers of one mma.m16n8k16 (or its
// share of a wgmma): code - zero as two 16-bit integers each, exactly. The scale is float32 and belongs on the sum.
#pragma once
#include "common.cuh"

#ifndef GROUP
#define GROUP 128
#endif

constexpr int TILE_ROWS = 16, TILE_COLUMNS = 128, UNIT_TILES = 4, UNIT_ROWS = TILE_ROWS * UNIT_TILES;
constexpr int CODE_BYTES = 1024, HEAD_BYTES = 64;
constexpr int TILE_BYTES = CODE_BYTES + HEAD_BYTES * (TILE_COLUMNS / GROUP), UNIT_BYTES = UNIT_TILES * TILE_BYTES;
constexpr int STEPS = TILE_COLUMNS / 16, GROUP_STEPS = GROUP / 16;

// Both halves of a pair plus those of another.
DEVICE u32 add_pairs(u32 a, u32 b) {
    u32 sum;
#if BF16
    // sm_80 can multiply and add bfloat16 pairs, but not only add.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3f803f80u), "r"(b));
#else
    asm("add.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
#endif
    return sum;
}

// (bits & mask) | also, in one instruction: left to itself the compiler makes two of it, for it has room for one constant.
DEVICE u32 mask_or(u32 bits, u32 mask, u32 also) {
    u32 out;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(bits), "r"(mask), "r"(also));
    return out;
}

// In a float16 number a code takes mantissa bits 0 to 3 beside the exponent of 1024, or bits 4 to 7 beside that of 64, so one
// shift serves two pairs. bfloat16 has bits for the first alone, beside the exponent of 128.
constexpr u32 EVEN_UNIT = 0x00010001u, EVEN_BASE = BF16 ? 0x43004300u : 0x64006400u;
constexpr u32 ODD_UNIT = BF16 ? 0x00010001u : 0x00100010u, ODD_BASE = BF16 ? 0x43004300u : 0x54005400u;
constexpr u32 SIGNS = 0x80008000u;

// What the codes of a group need, for rows g and g + 8 of a tile.
struct Head {
    u32 offset[2];  // -(base + zero), twice
    float scale[2];
};

DEVICE Head read_head(const u8* tile, int group, int g) {
    const uint2 words = *reinterpret_cast<const uint2*>(tile + CODE_BYTES + group * HEAD_BYTES + g * 8);
    Head head;
    head.offset[0] = (words.x >> 16) * EVEN_UNIT + (EVEN_BASE | SIGNS), head.scale[0] = float_of_f16(words.x & 0xffffu);
    head.offset[1] = (words.y >> 16) * ODD_UNIT + (ODD_BASE | SIGNS), head.scale[1] = float_of_f16(words.y & 0xffffu);
    return head;
}

// Beside an exponent of 0 float16 reads a code on those bits as code · 2⁻²⁴ or code · 2⁻²⁰: a subnormal number, which the tensor
// cores multiply as exactly as others. So codes can be multiplied as they are, if the sum of x times the zero is taken from
// their sums: one subtraction for each sum and group instead of one for each pair of codes. Codes of at most 15 lose
// little to that; where bfloat16 would need 128 + code, too much would be lost.
struct PlainHead {
    float zero[2], scale[2];  // in the units of the codes
};

DEVICE PlainHead read_plain_head(const u8* tile, int group, int g) {
    const uint2 words = *reinterpret_cast<const uint2*>(tile + CODE_BYTES + group * HEAD_BYTES + g * 8);
    const float even = float_of_f16(words.x & 0xffffu) * 0x1p24f, odd = float_of_f16(words.y & 0xffffu) * 0x1p20f;
    return {{float_of_f16(words.x >> 16), float_of_f16(words.y >> 12 & 0x1f0u)}, {even, odd}};
}

// The A registers of one step, as `decode` finds them.
DEVICE void plain_codes(u32 word, u32 (&a)[4]) {
#pragma unroll
    for (int pair = 0; pair < 4; pair++) a[pair] = mask_or(word >> pair / 2 * 8, 0x000f000fu << pair % 2 * 4, 0);
}

// Four steps of a lane's codes.
DEVICE uint4 read_codes(const u8* tile, int half, int lane) {
    return *reinterpret_cast<const uint4*>(tile + half * (CODE_BYTES / 2) + lane * 16);
}

DEVICE u32 word_of(const uint4& words, int step) {
    return step % 4 == 0 ? words.x : step % 4 == 1 ? words.y : step % 4 == 2 ? words.z : words.w;
}

// The A registers of one step: rows g, g + 8, g, g + 8; columns 2c, 2c, 2c + 8, 2c + 8 and the next ones.
DEVICE void decode(u32 word, const Head& head, u32 (&a)[4]) {
#pragma unroll
    for (int pair = 0; pair < 4; pair += 2) {
        const u32 even = word >> 4 * pair, odd = BF16 ? even >> 4 : even;
        a[pair] = add_pairs(mask_or(even, 15 * EVEN_UNIT, EVEN_BASE), head.offset[0]);
        a[pair + 1] = add_pairs(mask_or(odd, 15 * ODD_UNIT, ODD_BASE), head.offset[1]);
    }
}
