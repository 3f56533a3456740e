// Products of few tokens by mma.m16n8k16, for packed_wide: a warp waits for no other, where wgmma binds four together.
//
// The four warps of a group share a unit's step by twos: each takes half of the columns of two tiles, so that what it reads of x
// serves both. After a turn the two exchange sums, and each has those of one tile, as after wgmma.
#pragma once
#include "mma.cuh"
#include "packed4.cuh"
#include "warpgroups.cuh"

constexpr int HALF_COLUMNS = TILE_COLUMNS / 2, PART_COLUMNS = GROUP < HALF_COLUMNS ? GROUP : HALF_COLUMNS;
constexpr int PARTS = HALF_COLUMNS / PART_COLUMNS, PART_STEPS = PART_COLUMNS / 16;  // groups of half a step

// For NT eights of tokens: sums of both tiles of a warp, of rows g and g + 8 and tokens 8n + 2c.
template <int NT> using PairSums = float[2][NT][4];

// Where a lane finds in a stage what its warp multiplies, in bytes; W follows x. Tokens have 128 bytes for 64 columns,
// swizzled, so that the steps of 16 columns differ in bits that are only exchanged.
struct Place {
    u32 codes, heads, tokens;
    DEVICE Place(int x_bytes) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2, token = lane / 16 * 8 + lane % 8;
        const int tiles = x_bytes + warp / 2 * 2 * TILE_BYTES;
        codes = tiles + half * (CODE_BYTES / 2) + lane * 16;
        heads = tiles + half * (GROUP < TILE_COLUMNS ? PARTS * HEAD_BYTES : 0) + lane / 4 * 8;
        tokens = half * (x_bytes / 2) + token * 128 + (lane / 8 % 2 ^ token % 8) * 16;
        asm volatile("" : "+r"(codes), "+r"(heads), "+r"(tokens));  // else the compiler finds them anew in every step
    }
};

// Codes of half a step, and the head of its first group, of both tiles.
struct HalfTiles {
    uint4 codes[2];
    uint2 heads[2];
    DEVICE void read(const u8* stage, const Place& place) {
#pragma unroll
        for (int t = 0; t < 2; t++) {
            codes[t] = read_codes(stage + place.codes + t * TILE_BYTES, 0, 0);
            heads[t] = head_words(stage + place.heads + t * TILE_BYTES, 0, 0);
        }
    }
};

// Adds the products of half a step; `stage` stands at `address` too. `read` runs when all codes are decoded, and may
// replace them.
template <int NT, class Read>
DEVICE void multiply_half(PairSums<NT>& total, const HalfTiles& own, const u8* stage, u32 address, const Place& place,
                          const Read& read) {
    u32 b[4][NT / 2][4];
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int i = 0; i < NT / 2; i++) load_matrices(b[step][i], (address + place.tokens ^ step * 32) + i * 2048);
    Head heads[2] = {head_of(own.heads[0]), head_of(own.heads[1])};
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        PairSums<NT> sum;
#pragma unroll
        for (int t = 0; t < 2; t++) {
            if (part > 0) heads[t] = read_head(stage + place.heads + t * TILE_BYTES, part, 0);
#pragma unroll
            for (int n = 0; n < NT; n++) sum[t][n][0] = sum[t][n][1] = sum[t][n][2] = sum[t][n][3] = 0.0f;
        }
#pragma unroll
        for (int step = part * PART_STEPS; step < (part + 1) * PART_STEPS; step++) {
            u32 a[2][4];
#pragma unroll
            for (int t = 0; t < 2; t++) decode(word_of(own.codes[t], step), heads[t], a[t]);
            if (step == 3) read();
#pragma unroll
            for (int t = 0; t < 2; t++)
#pragma unroll
                for (int n = 0; n < NT; n++)
                    mma(sum[t][n], a[t][0], a[t][1], a[t][2], a[t][3], b[step][n / 2][n % 2 * 2],
                        b[step][n / 2][n % 2 * 2 + 1]);
        }
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) total[t][n][i] += heads[t].scale[i / 2] * sum[t][n][i];
    }
}

// Both halves of the columns meet: a warp keeps tile `half` of its two. `room`: (warp, n, lane) of a group of four warps, which
// wait for one another at barrier `id`.
template <int NT> DEVICE void exchange(float (&total)[NT][4], const PairSums<NT>& parts, float4* room, int id) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, half = warp % 2;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float sent[4];
#pragma unroll
        for (int i = 0; i < 4; i++) 
            sent[i] = half ? parts[0][n][i] : parts[1][n][i], total[n][i] = half ? parts[1][n][i] : parts[0][n][i];
        room[((warp ^ 1) * NT + n) * 32 + lane] = make_float4(sent[0], sent[1], sent[2], sent[3]);
    }
    meeting_wait(id, 128);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float4 other = room[(warp * NT + n) * 32 + lane];
        total[n][0] += other.x, total[n][1] += other.y, total[n][2] += other.z, total[n][3] += other.w;
    }
    meeting_wait(id, 128);  // the room is free again
}
