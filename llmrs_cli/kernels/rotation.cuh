// Norm and rotation of the qkv projection inside decode attention, for heads of at most 128 values.
#pragma once
#include "attend_tile.cuh"

static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128, "a lane holds both values of a pair");

// (a, b) → (a·cos − b·sin, b·cos + a·sin) for two pairs whose values lie D/2 apart, normed first where `norm` is given;
// `at` is the column of the first, `turn` the D/2 cosines and D/2 sines of the token.
DEVICE void rotate(u32& low, u32& high, int at, const float* turn, const float* norm, float r) {
    float2 a = unpack2(low), b = unpack2(high);
    if (norm) {
        a.x *= r * norm[at], a.y *= r * norm[at + 1];
        b.x *= r * norm[at + HEAD_DIM / 2], b.y *= r * norm[at + HEAD_DIM / 2 + 1];
    }
    const float2 cosine = *reinterpret_cast<const float2*>(turn + at);
    const float2 sine = *reinterpret_cast<const float2*>(turn + at + HEAD_DIM / 2);
    low = pack2(a.x * cosine.x - b.x * sine.x, a.y * cosine.y - b.y * sine.y);
    high = pack2(b.x * cosine.x + a.x * sine.x, b.y * cosine.y + a.y * sine.y);
}

DEVICE float square_sum(u32 pair) {
    const float2 v = unpack2(pair);
    return v.x * v.x + v.y * v.y;
}

// The queries of a group in fragments of mma, normed and rotated: pairs stay within a lane.
DEVICE void rotate_queries(u32 (&held)[STEPS][4], int c, const float* turn, const float* norm, float eps) {
    float r[2] = {1.0f, 1.0f};
    if (norm) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float squares = 0.0f;
#pragma unroll
            for (int j = 0; j < STEPS; j++) squares += square_sum(held[j][half]) + square_sum(held[j][half + 2]);
            squares += __shfl_xor_sync(FULL, squares, 1);
            squares += __shfl_xor_sync(FULL, squares, 2);
            r[half] = rsqrtf(squares / HEAD_DIM + eps);
        }
    }
#pragma unroll
    for (int j = 0; j < STEPS / 2; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            rotate(held[j][i], held[j + STEPS / 2][i], j * 16 + c * 2 + i / 2 * 8, turn, norm, r[i % 2]);
}

// Key and value of the newest token: lane l < D/4 holds columns 2l, 2l + 1 and those D/2 further.
struct Newest {
    u32 key[2], value[2];

    DEVICE void load(const HALF* keys, const HALF* values) {
        const int at = threadIdx.x % 32 * 2;
        key[0] = key[1] = value[0] = value[1] = 0;
        if (at >= HEAD_DIM / 2) return;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            key[i] = __ldcg(reinterpret_cast<const u32*>(keys + at + i * HEAD_DIM / 2));
            value[i] = __ldcg(reinterpret_cast<const u32*>(values + at + i * HEAD_DIM / 2));
        }
    }
    DEVICE void turn_key(const float* turn, const float* norm, float eps) {
        const float r = norm ? rsqrtf(warp_sum(square_sum(key[0]) + square_sum(key[1])) / HEAD_DIM + eps) : 1.0f;
        const int at = threadIdx.x % 32 * 2;
        if (at < HEAD_DIM / 2) rotate(key[0], key[1], at, turn, norm, r);
    }
    DEVICE void store(void* keys, void* values) const {
        const int lane = threadIdx.x % 32;
        if (lane >= HEAD_DIM / 4) return;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            static_cast<u32*>(keys)[lane + i * HEAD_DIM / 4] = key[i];
            static_cast<u32*>(values)[lane + i * HEAD_DIM / 4] = value[i];
        }
    }
};
