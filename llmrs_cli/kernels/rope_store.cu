// Between the qkv projection and attention: optional norm of each query and key head, rotation by position, keys and values
// into their pages. A group of lanes, 2^lanes_log of them, handles one head of one token, each lane four values of either
// half; where tokens are many it has the next TURNS heads on their way at once, since a visit to memory takes longer than the
// work. Tokens of decode attention that turns them itself (attend_few.cu) are left out where they stand before the first
// prompt. Padding is zeros from here on, as in the residual: on a GPU that is short of power a product of zeros is cheaper.
//
// Rotation pairs value i with value i + D/2: (a, b) → (a·cos − b·sin, b·cos + a·sin). What is rounded once in a sum of
// products is said here, not chosen by the compiler: a token has the same bits among few and among many.
#include "common.cuh"

constexpr int THREADS = 128, PAGE = 64, MANY_TURNS = 4;

// Four neighbouring values.
struct Four {
    float2 low, high;
    DEVICE float squares() const { return fmaf(high.y, high.y, fmaf(high.x, high.x, fmaf(low.y, low.y, low.x * low.x))); }
    DEVICE void scale(const float* norm, float r) {
        const float4 w = *reinterpret_cast<const float4*>(norm);
        low.x *= r * w.x, low.y *= r * w.y, high.x *= r * w.z, high.y *= r * w.w;
    }
};
DEVICE Four load_four(const HALF* from) {
    const uint2 bits = *reinterpret_cast<const uint2*>(from);
    return {unpack2(bits.x), unpack2(bits.y)};
}
DEVICE void store_four(HALF* to, const Four& v) {
    *reinterpret_cast<uint2*>(to) = make_uint2(pack2(v.low.x, v.low.y), pack2(v.high.x, v.high.y));
}
DEVICE void turn_one(float& a, float& b, float cosine, float sine) {
    const float before = a;
    a = fmaf(before, cosine, -b * sine), b = fmaf(b, cosine, before * sine);
}

struct Rotation {
    const HALF* qkv;        // (T, (Hq + 2·Hkv)·D)
    const int* positions;   // (T,)
    const int* slots;       // (T,) page · 64 + offset, or -1: a padding token, stored nowhere
    const float* table;     // (P, D) D/2 cosines, then D/2 sines
    const float* q_norm;    // (D,) or null, as is the other
    const float* k_norm;
    HALF* q;                // (T, Hq, D)
    HALF* keys;             // (NB, Hkv, 64, D)
    HALF* values;           // (NB, Hkv, 64, D)
    const int* first_tile;  // (S + 1,) as in attend_prefill.cu: what decodes before the first prompt is left out; or null
    HALF* attended;         // (T, Hq · D) where attention will write, or null: zeros for padding, which it leaves alone
    int tokens, heads, kv_heads, d, lanes_log;
    float eps;
    int sequences;

    // Before the first prompt a sequence has one token, so that both have one number. Prompts wait for all.
    DEVICE bool left_out(int token) const {
        return token >= tokens || (first_tile && token < sequences && __ldcg(first_tile + token + 1) == 0);
    }
    // One head of one token: its first value, and where it goes.
    DEVICE HALF* place(int token, int head, int slot) const {
        if (head < heads) return q + (i64(token) * heads + head) * d;
        const int stored = head - heads;
        HALF* cache = stored < kv_heads ? keys : values;
        const int kv_head = stored < kv_heads ? stored : stored - kv_heads;
        return cache + ((i64(slot / PAGE) * kv_heads + kv_head) * PAGE + slot % PAGE) * d;
    }
};

template <int TURNS> DEVICE void rotate(const Rotation& p) {
    allow_next();
    const int all = p.heads + 2 * p.kv_heads, half = p.d / 2, groups = THREADS >> p.lanes_log;
    const int at = (threadIdx.x & (1 << p.lanes_log) - 1) * 4, group = threadIdx.x >> p.lanes_log;
    wait_for_previous();
    int token[TURNS], head[TURNS], slot[TURNS], position[TURNS];
    bool live[TURNS];
    Four a[TURNS], b[TURNS];
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        const int item = (blockIdx.x * TURNS + t) * groups + group;
        token[t] = item / all, head[t] = item - token[t] * all, slot[t] = position[t] = 0;
        live[t] = at < half && !p.left_out(token[t]);
        if (live[t]) slot[t] = p.slots[token[t]], position[t] = p.positions[token[t]];
    }
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        a[t] = b[t] = Four{};
        const HALF* from = p.qkv + (i64(token[t]) * all + head[t]) * p.d + at;
        if (live[t] && slot[t] >= 0) a[t] = load_four(from), b[t] = load_four(from + half);
    }
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        const bool is_query = head[t] < p.heads, is_value = head[t] >= p.heads + p.kv_heads;
        if (p.q_norm) {
            float squares = a[t].squares() + b[t].squares();
            for (int by = 1 << p.lanes_log >> 1; by; by >>= 1) squares += __shfl_xor_sync(FULL, squares, by);
            const float r = rsqrtf(squares / p.d + p.eps);
            const float* norm = is_query ? p.q_norm : p.k_norm;
            if (live[t] && !is_value) a[t].scale(norm + at, r), b[t].scale(norm + half + at, r);
        }
        if (!live[t]) continue;
        if (slot[t] < 0) {
            if (!is_query || !p.attended) continue;
            HALF* row = p.attended + (i64(token[t]) * p.heads + head[t]) * p.d + at;
            store_four(row, Four{}), store_four(row + half, Four{});
            continue;
        }
        if (!is_value) {
            const float* turn = p.table + i64(position[t]) * p.d + at;
            const float4 cosine = *reinterpret_cast<const float4*>(turn);
            const float4 sine = *reinterpret_cast<const float4*>(turn + half);
            turn_one(a[t].low.x, b[t].low.x, cosine.x, sine.x), turn_one(a[t].low.y, b[t].low.y, cosine.y, sine.y);
            turn_one(a[t].high.x, b[t].high.x, cosine.z, sine.z), turn_one(a[t].high.y, b[t].high.y, cosine.w, sine.w);
        }
        HALF* to = p.place(token[t], head[t], slot[t]) + at;
        store_four(to, a[t]), store_four(to + half, b[t]);
    }
}

#define KERNEL(NAME, TURNS)                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                     \
        const HALF* qkv, const int* positions, const int* slots, const float* table, const float* q_norm,           \
        const float* k_norm, HALF* q, HALF* keys, HALF* values, const int* first_tile, HALF* attended, int tokens,  \
        int heads, int kv_heads, int d, int lanes_log, float eps, int sequences) {                                  \
        rotate<TURNS>(Rotation{qkv, positions, slots, table, q_norm, k_norm, q, keys, values, first_tile, attended, \
                               tokens, heads, kv_heads, d, lanes_log, eps, sequences});                             \
    }
KERNEL(rope_store, 1)
KERNEL(rope_store_many, MANY_TURNS)
