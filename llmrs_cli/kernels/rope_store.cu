// Between the qkv projection and attention: optional norm of each query and key head, rotation by position, keys and values
// into their pages. A warp handles one head of one token after the other. Tokens of decode attention that turns them itself
// (attend_few.cu) are left out where they stand before the first prompt. Padding is zeros from here on, as in the residual: on a
// GPU that is short of power a product of zeros is cheaper.
//
// Rotation pairs value i with value i + D/2: (a, b) → (a·cos − b·sin, b·cos + a·sin).
#include "common.cuh"

constexpr int WARPS = 4;
constexpr int PAGE = 64;
constexpr int PAIRS = 2;  // of a lane, two neighbours each: D ≤ 256

DEVICE float2 load_two(const HALF* from) { return unpack2(*reinterpret_cast<const u32*>(from)); }

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
    HALF* attended,         // (T, Hq · D) where attention will write, or null: zeros for padding, which it leaves alone
    int heads, int kv_heads, int d, float eps, int sequences) {
    allow_next();
    const int lane = threadIdx.x % 32, token = blockIdx.y, all = heads + 2 * kv_heads, half = d / 2;
    // Before the first prompt a sequence has one token, so that both have one number. Prompts wait for all.
    if (first_tile && token < sequences && __ldcg(first_tile + token + 1) == 0) return;
    wait_for_previous();
    const int slot = slots[token];
    const float* turn = table + i64(positions[token]) * d;
    const i64 place = (i64(slot / PAGE) * kv_heads * PAGE + slot % PAGE) * d;

#pragma unroll 1
    for (int head = blockIdx.x * WARPS + threadIdx.x / 32; head < all; head += gridDim.x * WARPS) {
        const bool is_query = head < heads, is_value = head >= heads + kv_heads;
        if (slot < 0) {
            u32* row = reinterpret_cast<u32*>(attended + (i64(token) * heads + head) * d);
            if (is_query && attended)
                for (int i = lane; i < half; i += 32) row[i] = 0;
            continue;
        }
        const HALF* from = qkv + (i64(token) * all + head) * d;
        float2 a[PAIRS], b[PAIRS];
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int at = (i * 32 + lane) * 2;
            a[i] = b[i] = make_float2(0.0f, 0.0f);
            if (at < half) a[i] = load_two(from + at), b[i] = load_two(from + at + half);
            squares += a[i].x * a[i].x + a[i].y * a[i].y + b[i].x * b[i].x + b[i].y * b[i].y;
        }
        const float* norm = is_query ? q_norm : is_value ? nullptr : k_norm;
        const float r = norm ? rsqrtf(warp_sum(squares) / d + eps) : 1.0f;
        HALF* to = is_query ? q + (i64(token) * heads + head) * d
                            : (is_value ? values : keys) + place + i64(head - heads - (is_value ? kv_heads : 0)) * PAGE * d;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int at = (i * 32 + lane) * 2;
            if (at >= half) continue;
            float2 low = a[i], high = b[i];
            if (norm) {
                low.x *= r * norm[at], low.y *= r * norm[at + 1];
                high.x *= r * norm[at + half], high.y *= r * norm[at + half + 1];
            }
            if (!is_value) {
                const float2 cosine = *reinterpret_cast<const float2*>(turn + at);
                const float2 sine = *reinterpret_cast<const float2*>(turn + at + half);
                const float2 x = low, y = high;
                low = make_float2(x.x * cosine.x - y.x * sine.x, x.y * cosine.y - y.y * sine.y);
                high = make_float2(y.x * cosine.x + x.x * sine.x, y.y * cosine.y + x.y * sine.y);
            }
            *reinterpret_cast<u32*>(to + at) = pack2(low.x, low.y);
            *reinterpret_cast<u32*>(to + at + half) = pack2(high.x, high.y);
        }
    }
}
