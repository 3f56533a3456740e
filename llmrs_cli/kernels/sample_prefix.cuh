// Counts and masses of prefixes of a row's order (score descending, id ascending), exact.
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

constexpr u64 ONE = 1ull << 48;  // a count above a mass: a warp has at most 65,535 ids

// Block-wide: counts and masses of the slice's ids before each of the pivots, and of all; ids of less mass than `floor`
// do not exist. `parts` is shared.
DEVICE void sum_prefixes(
    Row row, float top, u32 floor, const Pivot* pivots, u64 (*parts)[WARPS + 1], Partial* out) {
    u64 sums[SUMS] = {};
    // What a score must exceed to be before a pivot: less for lower ids.
    float over[CANDIDATES];
    int edge[CANDIDATES];
#pragma unroll
    for (int j = 0; j < CANDIDATES; j++) over[j] = pivots[j].below, edge[j] = pivots[j].id / 4;
    const volatile Pivot* at = pivots;  // no registers for what is read once a quad
    const float inverse = 1.0f / row.temperature, ordinary = row.plain() ? 0x1p-100f : INFINITE;
    auto mass_at = [&](float& score) {  // and makes the score of what does not exist -infinity
        u32 w = mass32(__fsub_rn(score, top));
        if (w < floor) w = 0, score = -INFINITE;
        return whole_mass(w) + ONE;
    };
    for_quads<1>(row, [&](int q, const float4 (&v)[1]) {
        const float logits[4] = {v[0].x, v[0].y, v[0].z, v[0].w};
#pragma unroll
        for (int j = 0; j < CANDIDATES; j++)
            if (q >= edge[j]) over[j] = at[j].score;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float size = fabsf(logits[i]);
            float score = row.plain_score(logits[i], inverse);
            if (!(size >= ordinary && size <= 0x1p100f)) score = row.score(logits[i]);
            const u64 w = mass_at(score);
            if (score > -INFINITE) sums[CANDIDATES] += w;
#pragma unroll
            for (int j = 0; j < CANDIDATES; j++)
                if (score > over[j]) sums[j] += w;
        }
    });
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < SUMS; j++) {
        const u64 sum = warp_total(sums[j]);
        if (lane == 0) parts[j][warp] = sum;
    }
    // Ids of a pivot's own quad that tie with it and come before it.
    if (threadIdx.x < SUMS) {
        u64 sum = 0;
        if (threadIdx.x < CANDIDATES) {
            const Pivot pivot = pivots[threadIdx.x];
            if (pivot.id / 4 >= row.first && pivot.id / 4 < row.last)
                for (int id = pivot.id / 4 * 4; id < pivot.id; id++) {
                    float score = row.score(row.logits[id]);
                    const bool tied = score == pivot.score;
                    const u64 w = mass_at(score);
                    if (tied && score > -INFINITE) sum += w;
                }
        }
        parts[threadIdx.x][WARPS] = sum;
    }
    __syncthreads();
    if (warp < SUMS) {
        const u64 part = lane <= WARPS ? parts[warp][lane] : 0;
        const u64 mass = warp_total(part & (ONE - 1)), count = warp_total(part >> 48);
        if (lane == 0) out->masses[warp] = mass, out->counts[warp] = count;
    }
}

// Block-wide, after a barrier: the row's sums from those of its blocks, into shared memory; masses, then counts.
DEVICE void add_blocks(const Partial* partials, u64* totals) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp < 2 * SUMS) {
        const u64 part = lane < gridDim.x ? __ldcg(&partials[lane].masses[0] + warp) : 0;
        const u64 total = warp_total(part);
        if (lane == 0) totals[warp] = total;
    }
    __syncthreads();
}
