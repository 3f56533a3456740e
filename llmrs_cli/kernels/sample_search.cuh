// What the blocks of a filtered row know of its kept prefix, and what one thread of each makes of new sums.
#pragma once
#include "sample_prefix.cuh"
#include "sample_race.cuh"

struct Search {
    Range range;
    u64 low, high;  // places; top-k's prefix ends between them, while `probing`
    u64 whole;      // mass of what top-k keeps; 0: not known yet
    bool probing;
    int chosen;     // the drawn id; -1: none yet; vocab: the row has failed
    int drawn[CANDIDATES], valid;
    Pivot pivots[CANDIDATES];

    DEVICE void start(float min_p) {
        range = Range{false, 0.0f, 0, __float2uint_rn(__fmul_rn(min_p, 0x1p32f))};
        low = high = whole = 0;
        probing = false, chosen = -1;
    }

    // Block-wide: the first ids in the order of s + g among what the blocks of the row have published.
    DEVICE void gather(const Row& row, const Partial* all, int wanted, Exchange& exchange) {
        const int blocks = gridDim.x, own = threadIdx.x % 32 < blocks ? threadIdx.x % 32 : 0;
        const float highest = warp_highest(__ldcg(&all[own].highest));
        const u32 limit = __reduce_max_sync(FULL, __ldcg(&all[own].limit));
        Best mine{-INFINITE, row.vocab};
        if (threadIdx.x < blocks * CANDIDATES && threadIdx.x % CANDIDATES < wanted) {
            const Best* held = &all[threadIdx.x / CANDIDATES].best[threadIdx.x % CANDIDATES];
            mine = Best{__ldcg(&held->score), __ldcg(&held->id)};
        }
        if (threadIdx.x == 0) {
            range.known = true;
            range.top = row.temperature > 0.0f ? row.score(highest) : highest;
            valid = 0;
        }
#pragma unroll 1
        for (int i = 0; i < wanted; i++) {
            const Best best = block_best(mine, exchange.best);
            if (best.id == mine.id) mine.score = -INFINITE;
            if (threadIdx.x > 0) continue;
            const bool sure = best.score > -INFINITE && (i == 0 || key_of(best.score) >= limit);
            drawn[i] = best.id, valid += sure;
            if (wanted > 1)
                pivots[i] = sure ? pivot_at(place_of(row.score(__ldcg(row.logits + best.id)), best.id))
                                 : Pivot{INFINITE, INFINITE, 0};
        }
        if (threadIdx.x == 0) {
            if (!(range.top > -INFINITE && range.top < INFINITE)) chosen = row.vocab;
            else if (wanted == 1) chosen = drawn[0];
        }
        __syncthreads();
    }

    DEVICE u64 step() const { return max((high - low) / (CANDIDATES + 1), 1ull); }

    DEVICE void probe() {
        for (int j = 0; j < CANDIDATES; j++) pivots[j] = pivot_at(low + step() * (j + 1));
    }

    // Ends probing once a place has just k ids before it, or there are no more than k at all.
    DEVICE void narrow(u64 k, const u64* masses, const u64* counts) {
        const u64 from = low, by = step();
        probing = counts[CANDIDATES] > k;
        whole = masses[CANDIDATES];
        for (int j = 0; probing && j < CANDIDATES; j++) {
            const u64 place = from + by * (j + 1);
            if (counts[j] > k) low = place;
            if (counts[j] < k) high = min(high, place);
            if (counts[j] == k) probing = false, range.bound = place, whole = masses[j];
        }
        if (probing) whole = 0;
    }

    // Chooses the first drawn id with less than the share `p` of the mass before it, or rules out what comes after.
    DEVICE void choose(float p, const u64* masses) {
        if (whole == 0) whole = masses[CANDIDATES];
        const double target = __dmul_rn(double(p), __ull2double_rn(whole));
#pragma unroll 1
        for (int i = 0; i < valid && chosen < 0; i++) {
            const float score = pivots[i].score;
            if (mass32(__fsub_rn(score, range.top)) < range.floor) continue;
            if (p >= 1.0f || masses[i] == 0 || __ull2double_rn(masses[i]) < target) chosen = drawn[i];
            else range.bound = max(range.bound, place_of(score, drawn[i]));
        }
    }
};
