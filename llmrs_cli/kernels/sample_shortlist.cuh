// Top-k for small k: ids that reach a score which k ids reach for sure go on a list, and one block draws from that.
//
// The row's threads form up to 512 groups; each has its greatest logit. The k-th greatest of these is reached by k ids
// at least, and by few more.
#pragma once
#include "sample_search.cuh"

constexpr int LISTED = THREADS;

// Of a row.
struct Shortlist {
    float maxima[THREADS];
    Best entries[LISTED];  // logits and ids, in any order
};

DEVICE int group_width() {  // threads; all groups of a row are THREADS at most
    int width = 1;
    while (width < gridDim.x) width *= 2;
    return width;
}

DEVICE void publish_maximum(float logit, Shortlist* list) {
    const int width = group_width();
    for (int step = 1; step < width; step <<= 1) logit = fmaxf(logit, __shfl_xor_sync(FULL, logit, step));
    if (threadIdx.x % width == 0) list->maxima[(blockIdx.x * THREADS + threadIdx.x) / width] = logit;
}

// Block-wide, after a barrier: a logit that at least k ids of the row reach, so far below the k-th that no lower logit
// has the same score; the least finite number if there are too few groups for that.
DEVICE float threshold(const Row& row, const Shortlist* list, int k) {
    const int groups = gridDim.x * THREADS / group_width();
    const u32 mine = threadIdx.x < groups ? key_of(__ldcg(list->maxima + threadIdx.x)) : 0;
    u32 key = 0;
#pragma unroll 1
    for (u32 bit = 1u << 31; bit >= 1u << 12; bit >>= 1)  // the last bits do not matter
        if (__syncthreads_count(mine >= (key | bit)) >= k) key |= bit;
    const float least = score_of(key);
    return fmaxf(least - fabsf(least) * 0x1p-20f - row.temperature * 0x1p-120f, -0x1.fffffep127f);
}

DEVICE void shortlist(const Row& row, float least, Meeting* meeting, Shortlist* list) {
    constexpr int LOADS = 4;
    bool full = false;
    for_quads<LOADS>(row, [&](int q0, const float4 (&v)[LOADS]) {
        u32 hits = 0;
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            hits |= u32(fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)) >= least) << i;
        for (; hits && !full; hits &= hits - 1) {
            const int q = q0 + (__ffs(hits) - 1) * THREADS;
            for (int id = 4 * q; id < min(4 * q + 4, row.vocab); id++) {
                const float logit = row.logits[id];
                if (!(logit >= least)) continue;
                const u32 place = atomicAdd(&meeting->listed, 1u);
                full |= place >= LISTED;
                if (place < LISTED) list->entries[place] = Best{logit, id};
            }
        }
    });
}

// In shared memory.
struct ListRoom {
    u64 places[LISTED], parts[WARPS];
    u32 masses[LISTED];
};

// Block-wide, after a barrier: chooses as the definition says, given that the first k in order are among the `listed`.
DEVICE void draw_listed(
    const Row& row, const Sampling& s, Search& search, const Shortlist* list, int listed, ListRoom& room,
    Exchange& exchange) {
    const int own = threadIdx.x;
    int id = row.vocab, rank = 0;
    float score = -INFINITE;
    u64 place = 0, mass = 0, before = 0;
    if (own < listed) {
        id = __ldcg(&list->entries[own].id);
        score = row.score(__ldcg(&list->entries[own].score));
        const u32 rounded = mass32(__fsub_rn(score, search.range.top));
        if (score > -INFINITE && rounded >= search.range.floor) place = place_of(score, id);
        mass = whole_mass(rounded);
        room.places[own] = place, room.masses[own] = rounded;
    }
    __syncthreads();
    if (place)
        for (int e = 0; e < listed; e++)
            if (room.places[e] > place) rank++, before += whole_mass(room.masses[e]);
    bool kept = place && rank < s.top_k;
    const u64 part = warp_total(kept ? mass : 0);
    if (own % 32 == 0) room.parts[own / 32] = part;
    __syncthreads();
    u64 whole = 0;
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) whole += room.parts[w];
    const double target = __dmul_rn(double(s.top_p), __ull2double_rn(whole));
    kept = kept && (s.top_p >= 1.0f || !rank || __ull2double_rn(before) < target);
    const Best best = block_best(Best{kept ? row.noisy(score, id) : -INFINITE, id}, exchange.best);
    if (own == 0) search.chosen = best.id;
}
