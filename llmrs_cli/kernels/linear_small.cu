// y = x · Wᵀ for few tokens (M ≤ 8 · NT): one pass over W at memory speed.
//
// Every block reads the same number of W's rows, whatever N is. WK warps split K, the others split the rows. A lane's
// 16-byte copy holds 8 consecutive k of one row; taking its four pairs as the k fragments of two mma steps permutes k
// alike in W and x, which a sum over k does not notice. So a lane consumes what it copied itself, and its ring of
// copies in shared memory needs no barrier. STEPS_AHEAD steps are in flight, some of them before wait_for_previous():
// weights do not depend on the kernel before, but what does returns after all that was asked for. The ring leaves half of
// the shared memory to the next kernel.
//
// The sums of a turn wait in shared memory until `held` turns are done: a block whose warps meet after every turn
// stops its copies each time, about a microsecond.
//
// Prologues and epilogues stand in linear.cuh.
#include "mma.cuh"

#ifndef WARPS
#define WARPS 8
#endif
#ifndef TILES
#define TILES 2
#endif
#ifndef STEPS_AHEAD
#define STEPS_AHEAD 6
#endif
#ifndef RESIDENT
#define RESIDENT 3
#endif
// Three resident blocks leave 80 registers a thread, four too few for what sm_100 makes of the float16 kernel.
#if __CUDA_ARCH__ >= 1000
#define BLOCKS_AT_ONCE (RESIDENT > 2 ? 2 : RESIDENT)
#else
#define BLOCKS_AT_ONCE RESIDENT
#endif

#include "linear.cuh"

constexpr int ROWS = 16 * TILES;      // rows of W in one pass of a warp
constexpr int ROW_STRIDE = ROWS + 4;  // of the partial sums in shared memory, in floats: no bank conflicts

template <int NT, bool NORM, Epilogue E>
DEVICE void linear(const Problem& p) {
    extern __shared__ __align__(16) float shared[];
    constexpr int UNIT = E == SILU ? 16 : 1;                   // rows that stay together
    const int x_bytes = NORM ? 0 : p.m * 64;                   // of one step in the ring: tokens' 32 values of k
    const int slot_bytes = TILES * 1024 + x_bytes, x_stride = (p.k + 63) / 64 * 64 + 32;
    float* partial = shared;                                   // [held][WARPS][M][ROW_STRIDE]
    u8* rings = reinterpret_cast<u8*>(partial + p.held * WARPS * p.m * ROW_STRIDE);  // [WARPS][STEPS_AHEAD][slot]
    float* scratch = reinterpret_cast<float*>(rings + WARPS * STEPS_AHEAD * slot_bytes);  // norm only: [8][WARPS] sums,
    float* factors = scratch + 8 * WARPS;                      // [8] factors,
    HALF* normed = reinterpret_cast<HALF*>(factors + 8);       // [M][x_stride] values

    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
    const int split = 1 << p.split_log, wk = warp & split - 1, wr = warp >> p.split_log, groups = WARPS >> p.split_log;

    // The rows are cut into passes of equal size, at most ROWS, in units that stay together. Blocks take turns, so that
    // together they move through W in a narrow window: few pages of memory are in use at a time.
    const int passes = p.turns * gridDim.x * groups;
    auto row_of = [&](int turn, int next) {
        const int pass = (turn * gridDim.x + blockIdx.x) * groups + wr + next;
        return pass >= passes ? p.n : int(u64(pass) * p.share >> 32) * UNIT;
    };
    // A thread's outputs are of row r of each turn.
    constexpr u32 OUTPUTS = E == SILU ? ROWS / 2 : ROWS;
    const u32 item = wk * 32 + lane, i = item % OUTPUTS;
    const int r = E == SILU ? i / 8 * 16 + i % 8 : i;
    const int all = (p.k + 31) / 32;
    // Warps take turns along K, so that together they read long runs of a row at about the same time.
    const int steps = all - wk + split - 1 >> p.split_log;
    const int total = p.turns * steps;

    // The copies run ahead of the products, with their own place: step `load_step` of rows `load_row`. A lane copies what it
    // will multiply. Offsets and shares are 32-bit: the launcher refuses larger matrices.
    const u8* ring = rings + warp * STEPS_AHEAD * slot_bytes;
    const u32 eight = 8 * p.k;
    int load_step = 0, load_turn = 0, load_row = row_of(0, 0), load_end = row_of(0, 1), loaded = 0;
    u32 offset = u32(load_row + g) * p.k + wk * 32 + c * 8;
    auto copy_weights = [&](int slot) {
        const bool inside = loaded < total && (wk + (load_step << p.split_log)) * 32 + c * 8 < p.k;
        const int live = inside ? load_end - load_row - g : 0;
        const u32 to = shared_address(ring) + slot * slot_bytes + lane * 16;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const u32 at = offset + 2 * t * eight;
            copy_async(to + t * 1024, p.weight + at, t * 16 < live);
            copy_async(to + t * 1024 + 512, p.weight + (at + eight), t * 16 + 8 < live);
        }
        offset += 32 << p.split_log, loaded++;
        if (++load_step == steps) {
            load_step = 0, load_turn++;
            load_row = row_of(load_turn, 0), load_end = row_of(load_turn, 1);
            offset = u32(load_row + g) * p.k + wk * 32 + c * 8;
        }
    };
    int x_step = 0;  // the same for x, which only the plain prologue copies
    auto copy_x = [&](int slot) {
        if constexpr (!NORM) {
            const int k = (wk + (x_step << p.split_log)) * 32 + c * 8;
            const u32 to = shared_address(ring) + slot * slot_bytes + TILES * 1024 + lane * 16;
#pragma unroll
            for (int n = 0; n < NT; n++)
                if (n * 8 + g < p.m) copy_async(to + n * 512, p.x + i64(n * 8 + g) * p.k + k, k < p.k);
            if (++x_step == steps) x_step = 0;
        }
    };

    allow_next();
    Row<4> single;
    if constexpr (NORM) single.load_weights(p);
#pragma unroll 1
    for (int s = 0; s < p.early; s++) {
        copy_weights(s);
        copy_commit();
    }
    wait_for_previous();
    if constexpr (NORM) single.load_residual(p);
#pragma unroll 1
    for (int s = 0; s < STEPS_AHEAD; s++) {
        if (s >= p.early) copy_weights(s);
        copy_x(s);
        copy_commit();
    }
    if constexpr (NORM) norm_rows<8 * NT>(p, single, normed, x_stride, scratch, factors);
    // What a thread's first sum is added to is on its way meanwhile.
    auto base_of = [&](int token, int row) {
        const float sum = E == ADD ? static_cast<const float*>(p.out)[i64(token) * p.n + row] : 0.0f;
        return p.bias ? sum + p.bias[row] : sum;
    };
    float before = 0.0f;
    if constexpr (E != SILU) {
        int token = item / OUTPUTS, place = 0;
        while (token >= p.m) token -= p.m, place++;
        const int row = place < p.turns ? row_of(place, 0) + r : p.n;
        if (place < p.turns && row < row_of(place, 1)) before = base_of(token, row);
    }

    float sum[TILES][NT][4];
    auto clear = [&]() {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int n = 0; n < NT; n++) sum[t][n][0] = sum[t][n][1] = sum[t][n][2] = sum[t][n][3] = 0.0f;
    };
    auto step = [&](int slot, int k) {
        const u8* held = ring + slot * slot_bytes + lane * 16;
        uint4 xs[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const int token = n * 8 + g;
            const void* from = NORM ? static_cast<const void*>(normed + token * x_stride + k)
                                    : static_cast<const void*>(held + TILES * 1024 + n * 512);
            xs[n] = token < p.m && k < p.k ? load_uint4(from) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const uint4 a = load_uint4(held + t * 1024), b = load_uint4(held + t * 1024 + 512);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                mma(sum[t][n], a.x, b.x, a.y, b.y, xs[n].x, xs[n].y);
                mma(sum[t][n], a.z, b.z, a.w, b.w, xs[n].z, xs[n].w);
            }
        }
    };
    auto keep = [&](int place) {
        float* mine = partial + (place * WARPS + warp) * p.m * ROW_STRIDE;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int token = n * 8 + 2 * c + i % 2;
                if (token >= p.m) continue;
#pragma unroll
                for (int t = 0; t < TILES; t++) mine[token * ROW_STRIDE + t * 16 + g + i / 2 * 8] = sum[t][n][i];
            }
    };
    // The WK partial sums of a row meet, in a fixed order; those of `count` turns from `first` on.
    auto finish = [&](int first, int count) {
        __syncthreads();
        bool early = first == 0;
#pragma unroll 1
        for (int token = item / OUTPUTS, place = 0;; token += (32 << p.split_log) / OUTPUTS, early = false) {
            while (token >= p.m) token -= p.m, place++;
            if (place >= count) break;
            const int row = row_of(first + place, 0) + r;
            if (row >= row_of(first + place, 1)) continue;
            float value = 0.0f, up = 0.0f;
            const float* from = partial + ((place * WARPS + (wr << p.split_log)) * p.m + token) * ROW_STRIDE + r;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                if (w >= split) break;
                value += from[w * p.m * ROW_STRIDE];
                if constexpr (E == SILU) up += from[w * p.m * ROW_STRIDE + 8];
            }
            const float factor = NORM ? factors[token] : p.alpha;
            if constexpr (E != SILU) {
                const float y = (early ? before : base_of(token, row)) + value * factor;
                const i64 at = i64(token) * p.n + row;
                if constexpr (E == STORE) static_cast<HALF*>(p.out)[at] = to_half(y);
                else static_cast<float*>(p.out)[at] = y;
            } else {
                write_out<E>(p, token, row, value * factor, up * factor);
            }
        }
        __syncthreads();
    };

    int slot = 0, kept = 0;
#pragma unroll 1
    for (int turn = 0; turn < p.turns; turn++) {
        clear();
#pragma unroll 1
        for (int at = 0; at < steps; at++) {
            copy_wait<STEPS_AHEAD - 1>();
            step(slot, (wk + (at << p.split_log)) * 32 + c * 8);
            copy_weights(slot);
            copy_x(slot);
            copy_commit();
            if (++slot == STEPS_AHEAD) slot = 0;
        }
        keep(kept++);
        if (kept == p.held || turn == p.turns - 1) finish(turn + 1 - kept, kept), kept = 0;
    }
    copy_wait<0>();
}

#define KERNEL(NAME, NT, NORM, E) KERNEL_OF(NAME, BLOCKS_AT_ONCE, (linear<NT, NORM, E>))
KERNEL(linear8_store, 1, false, STORE)
KERNEL(linear8_add, 1, false, ADD)
KERNEL(linear8_silu, 1, false, SILU)
KERNEL(linear8_logits, 1, false, LOGITS)
KERNEL(linear16_store, 2, false, STORE)
KERNEL(linear16_add, 2, false, ADD)
KERNEL(linear16_silu, 2, false, SILU)
KERNEL(linear16_logits, 2, false, LOGITS)
KERNEL(norm_linear8_store, 1, true, STORE)
KERNEL(norm_linear8_silu, 1, true, SILU)
KERNEL(norm_linear8_logits, 1, true, LOGITS)
