// Between the qkv projection and attention: optional norm of each query and key head, rotation by position, keys
// and values into their pages. One warp handles one head of one token. Tokens of decode attention that turns them itself
// (attend_few.cu) are left out where they stand before the first prompt.
//
// Rotation pairs value i with value i + D/2: (a, b) → (a·cos − b·sin, b·cos + a·sin).
#include "common.cuh"

constexpr int WARPS = 4;
constexpr int PAGE = 64;
constexpr int PAIRS = 4;  // of a lane: D ≤ 256

extern "C" __global__ void __launch_bounds__(WARPS * 32) rope_store(
    const HALF* qkv,        // (T, (Hq + 2·Hkv)·D)
    const int* positions,   // (T,)
    const int* slots,       // (T,) page · 64 + offset, or -1: a padding token, stored nowhere
    const float* table,     // (P, D) D/2 cosines, then D/2 sines
    const float* q_norm,    // (D,) or null
    const float* k_norm,    // (D,) or null
    HALF* q,                // (T, Hq, D)
    HALF* keys,             // (NB, Hkv, 64, D)
    HALF* values,           // (NB, Hkv, 64, D)
    const int* first_tile,  // (S + 1,) as in attend_prefill.cu: what decodes before the first prompt is left out; or null
    int heads, int kv_heads, int d, float eps, int sequences) {
    allow_next();
    const int lane = threadIdx.x % 32, token = blockIdx.y;
    const int head = blockIdx.x * WARPS + threadIdx.x / 32, all = heads + 2 * kv_heads;
    // Before the first prompt a sequence has one token, so that both have one number. Prompts wait for all.
    if (first_tile && token < sequences && __ldcg(first_tile + token + 1) == 0) return;
    wait_for_previous();
    if (head >= all) return;
    const HALF* from = qkv + (i64(token) * all + head) * d;
    const int half = d / 2, slot = slots[token];

    float a[PAIRS], b[PAIRS], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int at = i * 32 + lane;
        a[i] = b[i] = 0.0f;
        if (at < half) a[i] = to_float(from[at]), b[i] = to_float(from[at + half]);
        squares += a[i] * a[i] + b[i] * b[i];
    }
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;
    const float* norm = is_query ? q_norm : is_value ? nullptr : k_norm;
    const float r = norm ? rsqrtf(warp_sum(squares) / d + eps) : 1.0f;
    const int kv_head = (head - heads) % kv_heads;
    HALF* to = q + (i64(token) * heads + head) * d;
    if (!is_query) {
        if (slot < 0) return;
        to = (is_value ? values : keys) + ((i64(slot / PAGE) * kv_heads + kv_head) * PAGE + slot % PAGE) * d;
    }
    const float* turn = table + i64(positions[token]) * d;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int at = i * 32 + lane;
        if (at >= half) continue;
        float low = a[i], high = b[i];
        if (norm) low *= r * norm[at], high *= r * norm[at + half];
        if (!is_value) {
            const float cosine = turn[at], sine = turn[at + half], x = low;
            low = x * cosine - high * sine;
            high = high * cosine + x * sine;
        }
        to[at] = to_half(low);
        to[at + half] = to_half(high);
    }
}
