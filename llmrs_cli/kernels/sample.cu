// Draws one token per row of logits, in one launch: penalties, bias, bans, mask, temperature, min-p, top-k, top-p and
// Gumbel noise, bit for bit as the reference defines them (see there for the rules by number).
//
// `gridDim.x` blocks share a row, each a slice of the vocabulary of at most 65,536 ids. A greedy or purely tempered
// row is one pass: each block leaves its best, the block that arrives last takes the best of all. A filtered row needs
// its cut first: in the order (score descending, id ascending) all three filters keep a prefix of what is eligible, and
// its end is found digit by digit: histograms of counts and masses over the next bits of the score, merged over the
// row's blocks at a barrier. All blocks are resident at once (the launcher sees to it), so barriers cannot hang.
// Longer than most files: one launch is the point, and its rules only make sense in their order.
#include "random.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int BINS = 2048;
constexpr int DIGITS = 3;  // 11 + 11 + 10 bits
#if __CUDA_ARCH__ >= 1200
constexpr int LOADS = 1;  // in flight for a thread; more spill there
#define KEEP_SMALL _Pragma("unroll 1")
#else
constexpr int LOADS = 4;
#define KEEP_SMALL
#endif
#define INFINITE __int_as_float(0x7f800000)

// A row's sampling state; the host writes it as 16 words.
struct Sampling {
    float temperature, top_p, min_p, repetition, presence, frequency;
    int top_k, prompt_length, min_length, choice;
    u32 seed_low, seed_high;
    int biases, stops, penalised, unused;
};

struct Best {
    float score;
    int id;
};

// What the blocks of one row leave for each other, in memory that is zero between launches where it counts.
struct Shared {
    u32 arrived;   // at barriers, ever growing within a launch; reset by the last block
    u32 finished;
};

struct Partial {
    Best greedy, noisy;
    int bad;
    int padding;
};

DEVICE bool better(const Best& a, const Best& b) {  // a over b
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

DEVICE Best block_best(Best mine, Best* scratch) {
    for (int step = 16; step; step >>= 1) {
        const Best other{__shfl_xor_sync(FULL, mine.score, step), __shfl_xor_sync(FULL, mine.id, step)};
        if (better(other, mine)) mine = other;
    }
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        if (better(scratch[w], mine)) mine = scratch[w];
    __syncthreads();
    return mine;
}

DEVICE u32 load_acquire(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// Barrier number `round` (from 1) of the row's blocks.
DEVICE void row_barrier(Shared* shared, u32 round) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&shared->arrived, 1);
        while (load_acquire(&shared->arrived) < round * gridDim.x) __nanosleep(20);
        __threadfence();
    }
    __syncthreads();
}

// Order of scores as an order of integers; -0 and +0 are one.
DEVICE u32 key_of(float score) {
    const u32 bits = __float_as_uint(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Where a prefix of the order ends: kept are keys above `key`, and of those equal to it the ids up to `last`.
struct Cut {
    u32 key;
    int last;
};

DEVICE float penalise(const Sampling& s, float l, u32 count) {
    if (s.repetition != 1.0f && count) l = l > 0.0f ? __fdiv_rn(l, s.repetition) : __fmul_rn(l, s.repetition);
    const u32 said = count & 0x7fffu;
    if (said) l = __fsub_rn(__fsub_rn(l, __fmul_rn(s.frequency, __uint2float_rn(said))), s.presence);
    return l;
}

struct Histogram {
    u32 count[BINS], low[BINS], high[BINS];
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) sample(
    float* logits,               // (R, V); a row whose scores differ from its logits is overwritten with them
    const int* rows,             // (R,) row of the state, or -1: padding
    const int* tokens_at,        // (R,) index into the step's tokens
    const int* positions,        // (T,) of the step's tokens
    const Sampling* sampling,    // (rows,)
    const int* bias_ids,         // (rows, B)
    const float* bias_values,    // (rows, B)
    const int* stop_ids,         // (rows, E)
    u16* counts,                 // (rows, W) bit 15: in the prompt; below: times in the answer
    const u32* mask,             // (R, ceil(V / 32)) or null
    int* pool,                   // (rows, P) tokens of every row
    Partial* partials,           // (R, blocks)
    Shared* meeting,             // (R,)
    Histogram* histograms,       // (R, 2, blocks)
    int* out,                    // (R, 2) token and whether the row failed
    int vocab, int count_width, int bias_width, int stop_width, int pool_width) {
    __shared__ Best scratch[WARPS];
    __shared__ Histogram bins;
    __shared__ u64 sums[WARPS];
    __shared__ u32 tallies[WARPS];
    __shared__ int found_bin;
    __shared__ u64 before_mass;
    __shared__ u32 before_count, bin_count;
    __shared__ int flag;

    allow_next();
    wait_for_previous();
    const int r = blockIdx.y, row = rows[r], block = blockIdx.x, blocks = gridDim.x;
    if (row < 0) return;
    const Sampling s = sampling[row];
    const int n = positions[tokens_at[r]] + 1;
    float* l = logits + i64(r) * vocab;
    const int quads = (vocab + 3) / 4;
    const int begin = int(i64(quads) * block / blocks) * 4, end = min(int(i64(quads) * (block + 1) / blocks) * 4, vocab);
    const bool filtered = s.temperature > 0.0f && (s.top_k > 0 || s.top_p < 1.0f || s.min_p > 0.0f);
    const bool banning = n < s.min_length && s.stops > 0;
    // A filtered row is read many times: its scores are worth storing.
    const bool adjusted = filtered || s.penalised || s.biases || banning || mask;

    // ---- rules 1 to 5, in place -----------------------------------------------------------------------------
    int bad = 0;
    if (adjusted) {
        // Biases and bans are few: their raw logits are held while the dense rules pass over the slice.
        constexpr int HELD = 4;
        float raw[HELD];
        const int few = s.biases + (banning ? s.stops : 0);
        auto id_of = [&](int i) {
            return i < s.biases ? bias_ids[i64(row) * bias_width + i] : stop_ids[i64(row) * stop_width + i - s.biases];
        };
        const u16* seen = s.penalised ? counts + i64(row) * count_width : nullptr;
        const u32* allowed = mask ? mask + i64(r) * ((vocab + 31) / 32) : nullptr;
        auto final_score = [&](float value, int id) {
            if (allowed && !(allowed[id / 32] >> id % 32 & 1)) value = -INFINITE;
            return s.temperature > 0.0f ? __fdiv_rn(value, s.temperature) : value;
        };
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const int i = h * THREADS + threadIdx.x;
            raw[h] = i < few ? l[id_of(i)] : 0.0f;
        }
        __syncthreads();
        KEEP_SMALL for (int id = begin + threadIdx.x; id < end; id += THREADS) {
            const float value = l[id];
            bad |= !(value < INFINITE);
            l[id] = final_score(seen ? penalise(s, value, seen[id]) : value, id);
        }
        __syncthreads();
        for (int phase = 0; phase < 2; phase++) {  // biases, then bans: an id may be both
#pragma unroll
            for (int h = 0; h < HELD; h++) {
                const int i = h * THREADS + threadIdx.x;
                if (i >= few || (i >= s.biases) != phase) continue;
                const int id = id_of(i);
                if (id < begin || id >= end) continue;
                const float value = seen ? penalise(s, raw[h], seen[id]) : raw[h];
                l[id] = phase ? -INFINITE : final_score(__fadd_rn(value, bias_values[i64(row) * bias_width + i]), id);
            }
            __syncthreads();
        }
    }
    const bool divide = !adjusted && s.temperature > 0.0f;
    auto scaled = [&](float value) { return divide ? __fdiv_rn(value, s.temperature) : value; };
    auto score_at = [&](int id) { return scaled(l[id]); };
    // visit(value, id) over the slice, ids ascending for each thread; four values a load where rows are aligned.
    auto for_each = [&](auto visit) {
        if (vocab % 4 == 0) {
#pragma unroll LOADS
            for (int id = begin + threadIdx.x * 4; id < end; id += THREADS * 4) {
                const float4 v = *reinterpret_cast<const float4*>(l + id);
                visit(v.x, id), visit(v.y, id + 1), visit(v.z, id + 2), visit(v.w, id + 3);
            }
        } else {
            KEEP_SMALL for (int id = begin + threadIdx.x; id < end; id += THREADS) visit(l[id], id);
        }
    };
    // The best of s + g over ids that `kept` lets through; Philox gives four ids at once.
    auto noisy_best = [&](auto kept) {
        Best best{-INFINITE, vocab};
        for (int id0 = begin + threadIdx.x * 4; id0 < end; id0 += THREADS * 4) {
            const Words words = philox(s.seed_low, s.seed_high, n, id0 / 4, s.choice);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int id = id0 + j;
                if (id >= end) continue;
                const float score = score_at(id), v = uniform(words.x[j]);
                if (!(score > -INFINITE) || score + gumbel_bound(v) < best.score || !kept(score, id)) continue;
                const Best mine{__fadd_rn(score, gumbel(v)), id};
                if (better(mine, best)) best = mine;
            }
        }
        return best;
    };

    // ---- first pass: greatest score, and the draw itself where nothing is filtered --------------------------------
    Best greedy{-INFINITE, vocab};
    for_each([&](float value, int id) {
        if (!adjusted) bad |= !(value < INFINITE);
        const float score = scaled(value);
        if (score > greedy.score) greedy = Best{score, id};  // ids ascend: the first of equals is the lowest
    });
    greedy = block_best(greedy, scratch);
    Best noisy{-INFINITE, vocab};
    if (s.temperature > 0.0f && !filtered)
        noisy = block_best(noisy_best([](float, int) { return true; }), scratch);
    bad = __syncthreads_or(bad);
    Partial* mine = partials + i64(r) * blocks;
    if (threadIdx.x == 0) mine[block] = Partial{greedy, noisy, bad, 0};

    if (filtered) {
        u32 round = 1;
        row_barrier(meeting + r, round);
        float top = -INFINITE;
        int any_bad = 0;
        KEEP_SMALL for (int b = 0; b < blocks; b++) {
            top = fmaxf(top, __ldcg(&mine[b].greedy.score));
            any_bad |= __ldcg(&mine[b].bad);
        }
        // A failed row has no order to cut; its blocks agree on that and go on to the end.
        if (!any_bad && top > -INFINITE && top < INFINITE) {
            const u64 floor = __float2ull_rn(__fmul_rn(s.min_p, 0x1p32f));
            Cut cut{0, vocab};
            auto inside = [&](u32 key, int id) { return key > cut.key || (key == cut.key && id <= cut.last); };
            u64 all_mass = 0;

            // Each rule shortens the prefix to its first elements whose count reaches `k` or, for top-p, whose mass reaches
            // its share of the whole. The digits of the score come first, then those of the id where scores tie.
#pragma unroll 1
            for (int rule = 0; rule < 2; rule++) {  // top-k, then top-p
                const u32 k = rule == 0 && s.top_k < vocab ? s.top_k : 0;
                if (rule == 0 ? k == 0 : s.top_p >= 1.0f) continue;
                bool all_stay = false, alone = false;
                u32 prefix = 0, count_so_far = 0, taken_bits = 0;
                u64 mass_so_far = 0;
                double target = 0.0;
                u32 tie_key = 0;
                bool ids = false;
                for (int digit = 0; digit < DIGITS + 2; digit++) {
                    const int width = digit < 2 ? 11 : digit == 2 ? 10 : 11;  // ids: 22 bits, 11 and 11
                    if (digit == DIGITS) ids = true, tie_key = prefix, prefix = 0, taken_bits = 0;
                    const int shift = (ids ? 22 : 32) - int(taken_bits) - width;
                    for (int i = threadIdx.x; i < BINS; i += THREADS) bins.count[i] = bins.low[i] = bins.high[i] = 0;
                    __syncthreads();
                    for_each([&](float score, int id) {
                        const u32 key = key_of(score);
                        if (!(score > -INFINITE) || !inside(key, id)) return;
                        // Higher digits first: keys descend, ids ascend, so ids are counted from the top as well.
                        const u32 value = ids ? ~u32(id) & 0x3fffffu : key;
                        if (ids && key != tie_key) return;
                        if (taken_bits && value >> (shift + width) != prefix) return;
                        const u64 w = mass(score - top);
                        if (w < floor) return;
                        const u32 bin = value >> shift & ((1u << width) - 1);
                        atomicAdd(&bins.count[bin], 1);
                        atomicAdd(&bins.low[bin], u32(w & 0xffffu));
                        atomicAdd(&bins.high[bin], u32(w >> 16));
                    });
                    __syncthreads();
                    Histogram* both = histograms + (i64(r) * 2 + (round & 1)) * blocks;
                    for (int i = threadIdx.x; i < BINS; i += THREADS) {
                        __stcg(&both[block].count[i], bins.count[i]);
                        __stcg(&both[block].low[i], bins.low[i]);
                        __stcg(&both[block].high[i], bins.high[i]);
                    }
                    row_barrier(meeting + r, ++round);

                    // Each thread sums its bins, from the top bin down, over the row's blocks.
                    constexpr int PER = BINS / THREADS;
                    u32 count[PER];
                    u64 weight[PER], own_mass = 0;
                    u32 own_count = 0;
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        const int bin = BINS - 1 - (threadIdx.x * PER + i);
                        count[i] = 0, weight[i] = 0;
                        KEEP_SMALL for (int b = 0; b < blocks; b++) {
                            count[i] += __ldcg(&both[b].count[bin]);
                            weight[i] += __ldcg(&both[b].low[bin]) + (u64(__ldcg(&both[b].high[bin])) << 16);
                        }
                        own_count += count[i], own_mass += weight[i];
                    }
                    u32 count_scan = own_count;  // inclusive over the block
                    u64 mass_scan = own_mass;
                    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
                    for (int step = 1; step < 32; step <<= 1) {
                        const u32 c = __shfl_up_sync(FULL, count_scan, step);
                        const u64 m = __shfl_up_sync(FULL, mass_scan, step);
                        if (lane >= step) count_scan += c, mass_scan += m;
                    }
                    if (lane == 31) sums[warp] = mass_scan, tallies[warp] = count_scan;
                    __syncthreads();
                    u64 total = 0;
                    for (int w = 0; w < WARPS; w++) {
                        if (w < warp) count_scan += tallies[w], mass_scan += sums[w];
                        total += sums[w];
                    }
                    if (digit == 0) {
                        all_mass = total;
                        target = __dmul_rn(double(s.top_p), __ull2double_rn(all_mass));
                        if (threadIdx.x == 0) found_bin = -1;
                    }
                    __syncthreads();
                    u32 c = count_so_far + count_scan - own_count;
                    u64 m = mass_so_far + mass_scan - own_mass;
                    auto reached = [&](u32 number, u64 sum) {
                        return k ? number >= k : number > 0 && __ull2double_rn(sum) >= target;
                    };
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        if (count[i] && !reached(c, m) && reached(c + count[i], m + weight[i])) {
                            found_bin = BINS - 1 - (threadIdx.x * PER + i);
                            before_count = c, before_mass = m, bin_count = count[i];
                        }
                        c += count[i], m += weight[i];
                    }
                    __syncthreads();
                    all_stay = found_bin < 0;  // fewer than k are eligible
                    if (all_stay) break;
                    count_so_far = before_count, mass_so_far = before_mass;
                    if (digit == DIGITS - 1) alone = bin_count == 1;
                    taken_bits += width;
                    prefix = prefix << width | u32(found_bin);
                    __syncthreads();
                    if (alone) break;  // no ties to cut
                }
                if (!all_stay) cut = alone ? Cut{prefix, vocab} : Cut{tie_key, int(~prefix & 0x3fffffu)};
            }
            noisy = noisy_best([&](float score, int id) {
                return inside(key_of(score), id) && mass(score - top) >= floor;
            });
            noisy = block_best(noisy, scratch);
            if (threadIdx.x == 0) mine[block].noisy = noisy;
        }
    }

    // ---- the block that arrives last takes the best of all --------------------------------------------------------
    if (threadIdx.x == 0) {
        __threadfence();
        flag = atomicAdd(&meeting[r].finished, 1) == blocks - 1;
        __threadfence();
    }
    __syncthreads();
    if (!flag || threadIdx.x > 0) return;
    Best chosen{-INFINITE, vocab}, highest{-INFINITE, vocab};
    bad = 0;
    for (int b = 0; b < blocks; b++) {
        bad |= __ldcg(&mine[b].bad);
        const Best top{__ldcg(&mine[b].greedy.score), __ldcg(&mine[b].greedy.id)};
        const Best drawn{__ldcg(&mine[b].noisy.score), __ldcg(&mine[b].noisy.id)};
        if (better(top, highest)) highest = top;
        if (better(drawn, chosen)) chosen = drawn;
    }
    if (s.temperature == 0.0f) chosen = highest;
    const bool failed = bad || !(highest.score > -INFINITE && highest.score < INFINITE);
    const int id = failed ? 0 : chosen.id;
    out[2 * r] = id, out[2 * r + 1] = failed;
    pool[i64(row) * pool_width + n] = id;
    if (s.penalised) {
        u16* count = counts + i64(row) * count_width + id;
        if ((*count & 0x7fff) < 0x7fff) ++*count;
    }
    meeting[r] = Shared{0, 0};
}
