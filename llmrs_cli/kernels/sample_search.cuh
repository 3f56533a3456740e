// What the blocks of a filtered row know of its kept prefix, and what one thread of each makes of new sums.
#pragma once
#include "sample_prefix.cuh"
#include "sample_race.cuh"

enum Mode { DRAWING, COUNTING, WEIGHING };
constexpr u64 LAST_PLACE = u64(NOTHING + 1) << 32;

struct Search {
    Mode mode;
    Range range;
    u64 low, high;  // places; top-k's prefix ends between them, while it is looked for by counting
    u64 whole;      // mass of what top-k keeps; 0: not known yet
    int chosen;     // the drawn id; -1: none yet; vocab: the row has failed
    int drawn[CANDIDATES], valid;
    Pivot pivots[CANDIDATES];

    DEVICE void start(float min_p) {
        range = Range{false, 0.0f, 0, __float2uint_rn(__fmul_rn(min_p, 0x1p32f))};
        mode = DRAWING, low = LAST_PLACE, high = whole = 0, chosen = -1;
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
            drawn[i] = best.id;
            valid += best.score > -INFINITE && (i == 0 || key_of(best.score) >= limit);
        }
        if (threadIdx.x == 0) {
            if (!(range.top > -INFINITE && range.top < INFINITE)) chosen = row.vocab;
            else if (wanted == 1) chosen = drawn[0];
        }
        __syncthreads();
        if (threadIdx.x < CANDIDATES && wanted == CANDIDATES) {
            Pivot& pivot = pivots[threadIdx.x];
            const int id = drawn[threadIdx.x];
            pivot = Pivot{INFINITE, INFINITE, 0};
            if (threadIdx.x < valid) pivot = pivot_at(place_of(row.score(__ldcg(row.logits + id)), id));
        }
        __syncthreads();
    }

    // Places to count or weigh what is before them.
    DEVICE u64 place(int j) const {
        return low + max((high - low) / (CANDIDATES + 1), 1ull) * (j + (low > LAST_PLACE));
    }
    DEVICE void probe() {
        for (int j = 0; j < CANDIDATES; j++) pivots[j] = pivot_at(mode == WEIGHING ? range.bound : place(j));
    }

    // Ends counting once a place has just k ids before it, or there are no more than k at all.
    DEVICE void narrow(u64 k, const u64* counts) {
        u64 from = low, to = high;
        for (int j = 0; j < CANDIDATES && mode == COUNTING; j++) {
            const u64 here = place(j);
            if (counts[j] > k) from = here;
            if (counts[j] < k) to = min(to, here);
            if (counts[j] == k) mode = WEIGHING, range.bound = here;
            else if (here == LAST_PLACE && counts[j] < k) mode = DRAWING;
        }
        low = from, high = to;
    }

    DEVICE void weigh(const u64* totals) {
        whole = min(exact_sum(totals, 0), exact_sum(totals, WHOLE));
        mode = DRAWING;
    }

    // Chooses the first drawn id with less than the share `p` of the mass before it, or rules out what comes after.
    DEVICE void choose(float p, const u64* totals) {
        if (whole == 0 && p < 1.0f) whole = exact_sum(totals, WHOLE);
        const double target = __dmul_rn(double(p), __ull2double_rn(whole));
        auto kept = [&](u64 before) { return before == 0 || __ull2double_rn(before) < target; };
#pragma unroll 1
        for (int i = 0; i < valid && chosen < 0; i++) {
            const float score = pivots[i].score;
            if (mass32(__fsub_rn(score, range.top)) < range.floor) continue;
            if (p >= 1.0f || kept(exact_sum(totals, i))) chosen = drawn[i];
            else range.bound = max(range.bound, place_of(score, drawn[i]));
        }
    }
};
