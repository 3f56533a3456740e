// Rules 1 to 4 of the sampler, in place: penalties, biases, bans, mask.
#pragma once
#include "sample_row.cuh"

struct Rules {
    const u16* seen;     // (W,) bit 15: in the prompt; below: times in the answer; or null
    const u32* allowed;  // mask words or null
    const int *bias_ids, *stop_ids;
    const float* bias_values;
    int biases, bans;
};

DEVICE float penalise(const Sampling& s, float l, u32 count) {
    if (s.repetition != 1.0f && count) l = l > 0.0f ? __fdiv_rn(l, s.repetition) : __fmul_rn(l, s.repetition);
    const u32 said = count & 0x7fffu;
    if (said) l = __fsub_rn(__fsub_rn(l, __fmul_rn(s.frequency, __uint2float_rn(said))), s.presence);
    return l;
}

// Block-wide: adjusts the slice. True if this thread has met a raw logit that no row may have.
DEVICE bool adjust(const Row& row, const Sampling& s, const Rules& rules) {
    // Biases and bans are few: their raw logits are held while the other rules pass over the slice.
    constexpr int HELD = 4;
    float raw[HELD];
    const int few = rules.biases + rules.bans;
    auto id_of = [&](int i) { return i < rules.biases ? rules.bias_ids[i] : rules.stop_ids[i - rules.biases]; };
    auto owns = [&](int id) { return id / 4 >= row.first && id / 4 < row.last; };
    auto banned = [&](int id) { return rules.allowed && !(rules.allowed[id / 32] >> id % 32 & 1); };
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        const int i = h * THREADS + threadIdx.x;
        raw[h] = i < few && owns(id_of(i)) ? row.logits[id_of(i)] : 0.0f;
    }
    __syncthreads();
    bool bad = false;
    for_quads<1>(row, [&](int q, const float4 (&v)[1]) {
        float l[4] = {v[0].x, v[0].y, v[0].z, v[0].w};
        uint2 pairs = make_uint2(0, 0);  // counts of a whole quad
        if (rules.seen && row.vocab % 4 == 0) pairs = *reinterpret_cast<const uint2*>(rules.seen + 4 * q);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int id = 4 * q + j;
            bad |= !(l[j] < INFINITE);
            if (id >= row.vocab) continue;
            u32 count = (j < 2 ? pairs.x : pairs.y) >> 16 * (j % 2) & 0xffffu;
            if (rules.seen && row.vocab % 4) count = rules.seen[id];
            l[j] = penalise(s, l[j], count);
            if (banned(id)) l[j] = -INFINITE;
            if (row.vocab % 4) row.logits[id] = l[j];
        }
        if (row.vocab % 4 == 0) *reinterpret_cast<float4*>(row.logits + 4 * q) = make_float4(l[0], l[1], l[2], l[3]);
    });
    __syncthreads();
    for (int phase = 0; phase < 2; phase++) {  // biases, then bans: an id may be both
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const int i = h * THREADS + threadIdx.x;
            if (i >= few || (i >= rules.biases) != phase) continue;
            const int id = id_of(i);
            if (!owns(id)) continue;
            const float value = rules.seen ? penalise(s, raw[h], rules.seen[id]) : raw[h];
            row.logits[id] = phase || banned(id) ? -INFINITE : __fadd_rn(value, rules.bias_values[i]);
        }
        __syncthreads();
    }
    return bad;
}
