// The greatest s + g of a slice, s a score and g its Gumbel noise, without computing most of them.
//
// An id whose noise comes from word x has s + g ≥ B only if x · 2⁻³² ≤ exp(s - B): a product, a fast exponential and
// a comparison rule out all but a few. B starts from cheap underestimates for a first quad of each thread and rises
// with what is found; it is shared by the block. What passes is computed as the definition says.
#pragma once
#include "sample_row.cuh"

constexpr float LOG2_E = 1.44269504f;

// Which ids may be drawn; where `known`, only those before `bound` whose mass is `floor` or more.
struct Range {
    bool known;
    float top;  // score
    u64 bound;
    u32 floor;
};

// Every bound here errs on the safe side by this much, far above what the fast functions and roundings err.
DEVICE float slack(float score) { return 0.01f + fabsf(score) * 0x1p-20f; }

// The logit of `score` less or plus some slack.
DEVICE float logit_near(const Row& row, float score, float sign) {
    return score > -INFINITE ? (score + sign * slack(score)) * row.temperature : -INFINITE;
}

// Logits under the first are out of range; those from the second on are in it.
DEVICE float2 edges(const Row& row, const Range& range) {
    float low = -INFINITE, high = -INFINITE;
    if (range.known) {
        low = high = score_of(u32(range.bound >> 32));
        if (range.floor) {
            low = fmaxf(low, range.top + __logf((__uint2float_rn(range.floor) - 0.5f) * 0x1p-32f));
            high = fmaxf(high, range.top + __logf((__uint2float_rn(range.floor) + 0.5f) * 0x1p-32f));
        }
    }
    return make_float2(fmaxf(logit_near(row, low, -1.0f), -0x1.fffffep127f), logit_near(row, high, 1.0f));
}

// 1 + x · 2⁻³², rounded down.
DEVICE float one_and(u32 word) { return __uint_as_float(__funnelshift_r(word, 0x7fu, 9)); }

// At most s + g, but for roundings: g ≥ log((1 - v) / v).
DEVICE float underestimate(float logit, float slope, u32 word) {
    const float v = one_and(word) - (1.0f - 0x1p-23f);
    return (logit * slope + (__log2f(1.0f - v) - __log2f(v))) * (1.0f / LOG2_E);
}

// Block-wide. `leads` are four shared words; afterwards an id of the block that no thread has found has a score of less
// than all of them have, or, if `single`, than one of them has.
DEVICE Found race(Row row, const Range& range, bool single, u32* leads) {
    const float2 edge = edges(row, range);
    const float slope = __fdividef(LOG2_E, row.temperature);
    u32* lead = leads + threadIdx.x / 32 % 4;
    __syncthreads();
    if (threadIdx.x < 4) leads[threadIdx.x] = NOTHING;
    __syncthreads();
    {
        const int q = row.first + threadIdx.x;
        float most = -INFINITE;
        const float4 v = row.quad(min(q, row.last - 1));
        const Words w = row.words(q);
        const float logits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (q < row.last && logits[j] >= edge.y) most = fmaxf(most, underestimate(logits[j], slope, w.x[j]));
        most = warp_max(most);
        if (threadIdx.x % 32 == 0) atomicMax(lead, key_of(most - slack(most)));
    }
    __syncthreads();

    Found found{{-INFINITE, row.vocab}, -INFINITE, -INFINITE};
    auto offset = [&] {  // of the exponent, for the B of this moment
        const volatile u32* now = leads;
        const u32 a = now[0], b = now[1], c = now[2], d = now[3];
        const float bound = score_of(single ? max(max(a, b), max(c, d)) : min(min(a, b), min(c, d)));
        return (slack(bound) - bound) * LOG2_E;
    };
    auto passes = [&](float logit, u32 word, float by) {  // true for a NaN
        return logit >= edge.x && !(one_and(word) > 1.0f + exp2_fast(__fmaf_rn(logit, slope, by)));
    };
    auto examine = [&](int q) {
        Words w = row.words(q);
#pragma unroll 1
        for (int id = 4 * q; id < min(4 * q + 4, row.vocab); id++) {
            const float logit = row.logits[id];
            const u32 word = w.x[0];
            w = Words{{w.x[1], w.x[2], w.x[3], 0}};
            if (!passes(logit, word, offset())) continue;
            const float score = row.score(logit);
            if (!(score > -INFINITE)) continue;
            const auto kept = [&] {
                return place_of(score, id) > range.bound && mass32(__fsub_rn(score, range.top)) >= range.floor;
            };
            if (range.known && !kept()) continue;
            const Best mine{__fadd_rn(score, gumbel(uniform(word))), id};
            const bool first = mine.score > found.best.score;  // ids ascend
            found.dropped = fmaxf(found.dropped, first ? found.best.score : mine.score);
            if (first) found.best = mine;
            atomicMax(lead, key_of(mine.score));
        }
    };
    for_quads<RACED>(row, [&](int q, const float4 (&v)[RACED]) {
        const float by = offset();
        u32 hits = 0;
#pragma unroll
        for (int i = 0; i < RACED; i++) {
            const Words w = row.words(q + i * THREADS);
            found.highest = max_nan(max_nan(found.highest, max_nan(v[i].x, v[i].y)), max_nan(v[i].z, v[i].w));
            const bool any = passes(v[i].x, w.x[0], by) | passes(v[i].y, w.x[1], by) | passes(v[i].z, w.x[2], by) |
                             passes(v[i].w, w.x[3], by);
            hits |= u32(any) << i;
        }
        for (; hits; hits &= hits - 1) examine(q + (__ffs(hits) - 1) * THREADS);
    });
    __syncthreads();
    return found;
}
