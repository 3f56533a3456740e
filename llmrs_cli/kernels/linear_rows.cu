// y = x · Wᵀ for M = TOKENS (1 or 2) on CUDA cores: each warp takes two rows of W at a time, 512 bytes of both in one step.
//
// Every block has an equal share of the pairs of rows. `split` warps take a slice of K each, the others other pairs. A
// lane consumes what it copied itself, through a ring of DEPTH steps, and the stream of steps does not stop between
// pairs: a pair's sums go to shared memory, and the block meets once, at its end. The first steps are on their way
// before wait_for_previous().
//
// Prologues and epilogues stand in linear.cuh. For SILU a pair is a row of gate and its row of up.
#ifndef TOKENS
#define TOKENS 1
#endif
#ifndef WARPS
#define WARPS 16
#endif
#ifndef DEPTH
#define DEPTH 4
#endif
#ifndef RESIDENT
#define RESIDENT 2
#endif
#include "linear.cuh"

constexpr int CHUNK = 256;  // values of k in one step of a warp
constexpr int STEP_BYTES = 2 * CHUNK * 2;

// Sums of N values over the lanes; lane l has that of value l / (32 / N).
template <int N> DEVICE float lane_sums(float (&v)[N]) {
    const int lane = threadIdx.x % 32;
    int step = 16;
#pragma unroll
    for (int n = N / 2; n; n /= 2, step /= 2) {
        const bool high = lane & step;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float keep = high ? v[i + n] : v[i], give = high ? v[i] : v[i + n];
            v[i] = keep + __shfl_xor_sync(FULL, give, step);
        }
    }
#pragma unroll
    for (; step; step /= 2) v[0] += __shfl_xor_sync(FULL, v[0], step);
    return v[0];
}

DEVICE float dot8(const uint4& w, const uint4& x, float sum) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 a = unpack2((&w.x)[i]), b = unpack2((&x.x)[i]);
        sum += a.x * b.x;
        sum += a.y * b.y;
    }
    return sum;
}

template <bool NORM, Epilogue E>
DEVICE void linear_rows(const Problem& p) {
    extern __shared__ __align__(16) float shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int split = 1 << p.split_log, wk = warp & split - 1, wr = warp >> p.split_log, groups = WARPS >> p.split_log;
    const int first = u64(blockIdx.x) * p.share >> 32;
    const int past = blockIdx.x == gridDim.x - 1 ? (p.n + 1) / 2 : int(u64(blockIdx.x + 1) * p.share >> 32);
    const int pairs = past - first;
    const int x_stride = (p.k + 63) / 64 * 64;
    HALF* xs = reinterpret_cast<HALF*>(shared);                              // [M][x_stride]
    float* scratch = reinterpret_cast<float*>(xs + TOKENS * x_stride);       // [TOKENS][WARPS]
    float* factors = scratch + TOKENS * WARPS;                               // [TOKENS]
    constexpr int SMALL = (TOKENS * (WARPS + 1) + 3) / 4 * 4;                // both, to 16 bytes
    u8* ring = reinterpret_cast<u8*>(scratch + SMALL) + warp * DEPTH * STEP_BYTES;  // [WARPS][DEPTH][2 rows][CHUNK]
    float* partial = reinterpret_cast<float*>(ring + (WARPS - warp) * DEPTH * STEP_BYTES);  // [pairs][2][TOKENS][split]

    // ---- the stream of steps: chunk by chunk, pair by pair --------------------------------------------------------
    const int slice = (p.k + 15 + (split - 1) * 16 >> p.split_log + 4) * 16, from = wk * slice;
    const int upto = min(from + slice, p.k), chunks = (slice + CHUNK - 1) / CHUNK;
    auto row_of = [&](u32 pair) { return E == SILU ? pair / 8 * 16 + pair % 8 : 2 * pair; };
    int ahead_chunk = 0, ahead_pair = wr;
    auto load = [&](int slot) {  // one group of copies
        const int row = row_of(first + ahead_pair), k = from + ahead_chunk * CHUNK + lane * 8;
        const HALF* at = p.weight + i64(row) * p.k + k;
        const bool inside = ahead_pair < pairs && k < upto;
        const int other = E == SILU ? 8 : row + 1 < p.n;  // an odd last row is read twice
        const u32 to = shared_address(ring) + slot * STEP_BYTES + lane * 16;
        copy_async(to, at, inside);
        copy_async(to + STEP_BYTES / 2, at + i64(other) * p.k, inside);
        copy_commit();
        if (++ahead_chunk == chunks) ahead_chunk = 0, ahead_pair += groups;
    };

    allow_next();
    Row<2> single;
    if constexpr (NORM) single.load_weights(p);
#pragma unroll 1
    for (int slot = 0; slot < p.early; slot++) load(slot);
    wait_for_previous();
    if constexpr (NORM) {
        single.load_residual(p);
    } else {
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
#pragma unroll 1
            for (int k = threadIdx.x * 8; k < p.k; k += WARPS * 256)
                copy_async(shared_address(xs + t * x_stride + k), p.x + i64(t) * p.k + k, true);
        copy_commit();
    }
#pragma unroll 1
    for (int slot = 0; slot < DEPTH; slot++) {
        if (slot >= p.early) load(slot);
        else copy_commit();
    }
    if constexpr (NORM) {
        norm_rows<TOKENS, 2, 2>(p, single, xs, x_stride, scratch, factors);
    } else {
        copy_wait<DEPTH>();
        __syncthreads();
    }
    // What the sums are added to is on its way meanwhile.
    const int outputs = E == SILU ? pairs : min(2 * pairs, p.n - 2 * first), items = outputs * TOKENS;
    auto token_of = [&](int item) { return TOKENS > 1 && item >= outputs ? 1 : 0; };
    auto base_of = [&](int item) {
        const int token = token_of(item), row = 2 * first + item - token * outputs;
        const float sum = E == ADD ? static_cast<const float*>(p.out)[i64(token) * p.n + row] : 0.0f;
        return p.bias ? sum + p.bias[row] : sum;
    };
    float before = 0.0f;
    if constexpr (E != SILU)
        if (threadIdx.x < items) before = base_of(threadIdx.x);

    float sum[2 * TOKENS] = {};
    int chunk = 0, pair = wr, slot = 0;
#pragma unroll 1
    while (pair < pairs) {
        copy_wait<DEPTH - 1>();
        const u8* held = ring + slot * STEP_BYTES + lane * 16;
        const uint4 a = load_uint4(held), b = load_uint4(held + STEP_BYTES / 2);
        const int k = min(from + chunk * CHUNK + lane * 8, p.k - 8);  // weights beyond the slice are zeros
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            const uint4 x = load_uint4(xs + t * x_stride + k);
            sum[t] = dot8(a, x, sum[t]);
            sum[TOKENS + t] = dot8(b, x, sum[TOKENS + t]);
        }
        load(slot);
        if (++slot == DEPTH) slot = 0;
        if (++chunk < chunks) continue;
        const float mine = lane_sums(sum);
        constexpr int LANES = 32 / (2 * TOKENS);
        if (lane % LANES == 0) partial[(pair * 2 * TOKENS + lane / LANES) * split + wk] = mine;
#pragma unroll
        for (int i = 0; i < 2 * TOKENS; i++) sum[i] = 0.0f;
        chunk = 0, pair += groups;
    }
    copy_wait<0>();

    // ---- out ------------------------------------------------------------------------------------------------------
    __syncthreads();
#pragma unroll 1
    for (int item = threadIdx.x; item < items; item += WARPS * 32) {
        const int token = token_of(item), i = item - token * outputs;
        const float* from = partial + (E == SILU ? i * 2 * TOKENS + token : i / 2 * 2 * TOKENS + i % 2 * TOKENS + token) * split;
        float value = 0.0f, up = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            if (w >= split) break;
            value += from[w];
            if constexpr (E == SILU) up += from[TOKENS * split + w];
        }
        const float factor = NORM ? factors[token] : p.alpha;
        if constexpr (E == SILU) {
            write_out<E>(p, token, row_of(first + i), value * factor, up * factor);
            continue;
        }
        const float y = (item < WARPS * 32 ? before : base_of(item)) + value * factor;
        const i64 at = i64(token) * p.n + 2 * first + i;
        if constexpr (E == STORE) static_cast<HALF*>(p.out)[at] = to_half(y);
        else static_cast<float*>(p.out)[at] = y;
    }
}

#define KERNEL(NAME, NORM, E) KERNEL_OF(NAME, RESIDENT, (linear_rows<NORM, E>))
KERNEL(rows_store, false, STORE)
KERNEL(rows_add, false, ADD)
KERNEL(rows_silu, false, SILU)
KERNEL(rows_logits, false, LOGITS)
KERNEL(norm_rows_store, true, STORE)
KERNEL(norm_rows_silu, true, SILU)
KERNEL(norm_rows_logits, true, LOGITS)
