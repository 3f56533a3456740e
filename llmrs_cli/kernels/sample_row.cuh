// A row of logits as one block of the sampler sees it, and what the blocks of a row leave for each other.
//
// Each block owns a slice of the row's quads: four ids that share a call of the random generator and a load.
#pragma once
#include "random.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int CANDIDATES = 4;
constexpr int SUMS = CANDIDATES + 2;
// Quads in flight for a thread while ids race, and while only the greatest is wanted: as many as do not spill.
constexpr bool SMALL = __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200;
constexpr int RACED = SMALL ? 2 : 3, SCANNED = SMALL ? 2 : 4;
constexpr u32 NOTHING = 0x007fffffu;  // key of -infinity
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

// Of one block, for the others of its row.
struct Partial {
    u64 sums[SUMS];
    Best best[CANDIDATES];  // of those drawn from the slice, in their order
    u32 limit;              // key of a score: ids that are not listed score less
    float highest;          // logit of the slice; NaN and infinity if there is one
    u64 unused;
};

// Of a row; zeros between launches.
struct Meeting {
    u32 arrived;   // at barriers
    u32 finished;  // blocks
    u32 listed;    // ids on the shortlist, and those that found no place there
    u32 unused;
};

// Order of scores as an order of integers; -0 and +0 are one.
DEVICE u32 key_of(float score) {
    const u32 bits = __float_as_uint(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE float score_of(u32 key) {
    return key <= NOTHING ? -INFINITE : __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// Place in the order (score descending, id ascending): the greater comes first.
DEVICE u64 place_of(float score, int id) { return u64(key_of(score)) << 32 | ~u32(id); }

// NaN if either is.
DEVICE float max_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

DEVICE float warp_highest(float v) {
    for (int step = 16; step; step >>= 1) v = max_nan(v, __shfl_xor_sync(FULL, v, step));
    return v;
}

DEVICE u64 warp_total(u64 v) {
    for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(FULL, v, step);
    return v;
}

DEVICE Best warp_best(const Best& mine) {
    const u32 key = key_of(mine.score), most = __reduce_max_sync(FULL, key);
    const u32 id = __reduce_min_sync(FULL, key == most ? u32(mine.id) : ~0u);
    return Best{score_of(most), int(id)};
}

// The best of a block's, given to all its threads; of equals the lowest id.
DEVICE Best block_best(Best mine, Best* scratch) {
    const int lane = threadIdx.x % 32;
    mine = warp_best(mine);
    if (lane == 0) scratch[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = warp_best(scratch[lane % WARPS]);
    __syncthreads();
    return mine;
}

DEVICE u32 load_acquire(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// The blocks of a row to one of them; in shared memory.
struct Peers {
    Meeting* meeting;
    Partial* partials;  // two for each block: one may still be read
    u32 round;

    DEVICE Partial* own() const { return partials + (round & 1) * gridDim.x + blockIdx.x; }

    // Barrier of the row's blocks → what all of them have published.
    DEVICE const Partial* meet() {
        const Partial* all = partials + (round & 1) * gridDim.x;
        __syncthreads();
        if (threadIdx.x == 0) {
            round++;
            __threadfence();
            atomicAdd(&meeting->arrived, 1u);
            while (load_acquire(&meeting->arrived) < round * gridDim.x) __nanosleep(20);
            __threadfence();
        }
        __syncthreads();
        return all;
    }

    // Whether this block is the last of its row to come here.
    DEVICE bool leave(int* flag) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            *flag = atomicAdd(&meeting->finished, 1u) == gridDim.x - 1;
            __threadfence();
        }
        __syncthreads();
        return *flag;
    }
};

struct Row {
    float* logits;
    int vocab;
    int first, last;  // quads of the slice
    float temperature;
    u32 seed_low, seed_high;
    int position, choice;
    bool bad;  // a raw logit is NaN or infinite

    // Logits of quad q of the slice; -infinity past the vocabulary.
    DEVICE float4 quad(int q) const {
        const float* l = logits + 4 * q;
        if (vocab % 4 == 0) return *reinterpret_cast<const float4*>(l);
        float4 v = make_float4(l[0], -INFINITE, -INFINITE, -INFINITE);
        if (4 * q + 1 < vocab) v.y = l[1];
        if (4 * q + 2 < vocab) v.z = l[2];
        if (4 * q + 3 < vocab) v.w = l[3];
        return v;
    }
    DEVICE float score(float logit) const { return __fdiv_rn(logit, temperature); }
    // A quotient rounds as it should after one correction by fused steps, if neither it nor the remainder leaves the
    // normal numbers (seen for every mantissa at 16,000 temperatures, all thousandths up to 4 among them): not where
    // twice the bits of a logit, less 1 so that 0 passes, come to this at most.
    DEVICE u32 odd(float top) const {
        const bool plain = temperature >= 0x1p-20f && temperature <= 0x1p20f && fabsf(top) <= 0x1p99f;
        return plain ? 2 * 0x0d800000u : ~0u;
    }
    // Logits → scores; NaN for -infinity.
    DEVICE void divide(float (&logits)[4], float inverse, u32 odd) const {
        u32 least = ~0u;
        float scores[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            least = min(least, 2 * __float_as_uint(logits[i]) - 1);
            const float q = __fmul_rn(logits[i], inverse);
            scores[i] = __fmaf_rn(__fmaf_rn(-temperature, q, logits[i]), inverse, q);
        }
        if (least <= odd) {
#pragma unroll 1
            for (int i = 0; i < 4; i++) {  // in turn, so that there is one copy of the slow way
                const float done = score(logits[0]);
                logits[0] = logits[1], logits[1] = logits[2], logits[2] = logits[3], logits[3] = done;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) logits[i] = scores[i];
        }
    }
    DEVICE Words words(int q) const { return philox(seed_low, seed_high, position, q, choice); }
    // Score and noise of one id.
    DEVICE float noisy(float score, int id) const {
        const Words w = words(id / 4);
        const u32 word = id & 2 ? (id & 1 ? w.x[3] : w.x[2]) : (id & 1 ? w.x[1] : w.x[0]);
        return __fadd_rn(score, gumbel(uniform(word)));
    }
};

// visit(q, v): logits v[i] of the quads q + i · THREADS of this thread's, `LOADS` at a time; -infinity past the slice.
template <int LOADS, class Visit> DEVICE void for_quads(const Row& row, Visit visit) {
    for (int q = row.first + threadIdx.x; q < row.last; q += LOADS * THREADS) {
        float4 v[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            v[i] = make_float4(-INFINITE, -INFINITE, -INFINITE, -INFINITE);
            if (i == 0 || q + i * THREADS < row.last) v[i] = row.quad(q + i * THREADS);
        }
        visit(q, v);
    }
}

// Shared memory in which the warps of a block compare notes.
struct Exchange {
    Best best[WARPS];
    float highest[WARPS];
    u32 dropped[WARPS], leads[4];
    u64 sums[SUMS][WARPS + 1];
};

// What a thread has found among its ids.
struct Found {
    Best best;
    float dropped;  // the next best, or more
    float highest;  // logit; NaN if there is one
};

// Block-wide: leaves the best `wanted` of what the threads have found. 
DEVICE void publish(const Row& row, Found found, int wanted, Exchange& exchange, Partial* out) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float high = warp_highest(found.highest);
    const u32 dropped = __reduce_max_sync(FULL, key_of(found.dropped));
    if (lane == 0) exchange.highest[warp] = high, exchange.dropped[warp] = dropped;
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < wanted; i++) {
        const Best best = block_best(found.best, exchange.best);
        if (best.id == found.best.id) found.best.score = -INFINITE;
        if (threadIdx.x == 0) out->best[i] = best;
    }
    if (warp == 0) {
        const float all = warp_highest(exchange.highest[lane % WARPS]);
        const u32 limit = __reduce_max_sync(FULL, exchange.dropped[lane % WARPS]) + 1;
        const u32 *l = exchange.leads, lead = min(min(l[0], l[1]), min(l[2], l[3]));
        if (lane == 0) out->highest = row.bad ? constant(0x7fc00000u) : all, out->limit = max(limit, lead);
    }
}

// Each thread's greatest logit, and the lowest id that has it.
DEVICE Found greatest(Row row) {
    Found found{{-INFINITE, row.vocab}, -INFINITE, -INFINITE};
    int quad = row.last;
    for_quads<SCANNED>(row, [&](int q, const float4 (&v)[SCANNED]) {
#pragma unroll
        for (int i = 0; i < SCANNED; i++) {
            const float most = max_nan(max_nan(v[i].x, v[i].y), max_nan(v[i].z, v[i].w));
            found.highest = max_nan(found.highest, most);
            if (most > found.best.score) found.best.score = most, quad = q + i * THREADS;
        }
    });
    if (quad == row.last) return found;
    const float4 v = row.quad(quad);
    const float most = found.best.score;
    found.best.id = 4 * quad + (v.x == most ? 0 : v.y == most ? 1 : v.z == most ? 2 : 3);
    return found;
}
