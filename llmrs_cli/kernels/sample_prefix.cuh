// Masses or counts of prefixes of a row's order (score descending, id ascending), exact.
//
// Masses never grow as scores fall (a search over all float32 differences found no exception), so ids of too little
// mass to be drawn come after all others.
#pragma once
#include "sample_row.cuh"

// A place in the order: before it are greater scores, and equal ones of lower ids.
struct Pivot {
    float score;
    float below;  // the next lower score
    int id;
};

DEVICE Pivot pivot_at(u64 place) {
    const u32 key = u32(place >> 32), zero = 0x80000000u;
    return Pivot{score_of(key), score_of(key - 1 - (key == zero)), int(min(~u32(place), 0x7fffffffu))};
}

constexpr int WHOLE = CANDIDATES, FULL_ONES = CANDIDATES + 1;

// Block-wide: of the slice's ids, the masses before each of the pivots (or, if `counting`, how many they are); then the
// masses of `floor` or more; then how many masses are 2³², which are summed up as one less. `parts` is shared.
DEVICE void sum_prefixes(
    Row row, float top, u32 floor, bool counting, const Pivot* pivots, u64 (*parts)[WARPS + 1], Partial* out) {
    u64 sums[CANDIDATES + 1] = {};
    u32 full = 0;
    // What a score must exceed to be before a pivot: less for lower ids.
    float over[CANDIDATES];
    int edge[CANDIDATES];
#pragma unroll
    for (int j = 0; j < CANDIDATES; j++) over[j] = pivots[j].below, edge[j] = pivots[j].id / 4;
    const volatile Pivot* at = pivots;  // no registers for what is read once
    const float inverse = __fdiv_rn(1.0f, row.temperature);
    const u32 odd = row.odd(top);
    for_quads<1>(row, [&](int q, const float4 (&v)[1]) {
        float scores[4] = {v[0].x, v[0].y, v[0].z, v[0].w};
        row.divide(scores, inverse, odd);
#pragma unroll
        for (int j = 0; j < CANDIDATES; j++)
            if (q >= edge[j]) over[j] = at[j].score, edge[j] = 0x7fffffff;
        u32 masses[4];
#pragma unroll
        for (int i = 0; i < 4; i++) masses[i] = mass32(__fsub_rn(scores[i], top));
#pragma unroll
        for (int i = 0; i < 4; i += 2) {  // two sums of 64 bits at once take no more instructions than one
            const u32 a = masses[i], b = masses[i + 1], in_a = counting ? 1 : a, in_b = counting ? 1 : b;
#pragma unroll
            for (int j = 0; j < CANDIDATES; j++)
                sums[j] += u64(scores[i] > over[j] ? in_a : 0) + (scores[i + 1] > over[j] ? in_b : 0);
            sums[WHOLE] += u64(a >= floor ? a : 0) + (b >= floor ? b : 0);
        }
        if (max(max(masses[0], masses[1]), max(masses[2], masses[3])) == ~0u)
            for (int i = 0; i < 4; i++) full += masses[i] == ~0u;
    });
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < SUMS; j++) {
        const u64 sum = warp_total(j == FULL_ONES ? full : sums[j]);
        if (lane == 0) parts[j][warp] = sum;
    }
    // Ids of a pivot's own quad that tie with it and come before it.
    if (threadIdx.x < SUMS) {
        u64 sum = 0;
        const Pivot pivot = pivots[threadIdx.x % CANDIDATES];
        if (threadIdx.x < CANDIDATES && pivot.id / 4 >= row.first && pivot.id / 4 < row.last)
            for (int id = pivot.id / 4 * 4; id < pivot.id; id++)
                if (row.score(row.logits[id]) == pivot.score)
                    sum += counting ? 1 : mass32(__fsub_rn(pivot.score, top));
        parts[threadIdx.x][WARPS] = sum;
    }
    __syncthreads();
    if (warp < SUMS) {
        const u64 sum = warp_total(lane <= WARPS ? parts[warp][lane] : 0);
        if (lane == 0) out->sums[warp] = sum;
    }
}

// Block-wide, after a barrier: the row's sums from those of its blocks, into shared memory.
DEVICE void add_blocks(const Partial* partials, u64* totals) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp < SUMS) {
        const u64 total = warp_total(lane < gridDim.x ? __ldcg(&partials[lane].sums[warp]) : 0);
        if (lane == 0) totals[warp] = total;
    }
    __syncthreads();
}

// A sum of masses, in which those of 2³² lack 1 each; they come first.
DEVICE u64 exact_sum(const u64* totals, int which) {
    return totals[which] + min(totals[FULL_ONES], totals[which] / ~0u);
}
