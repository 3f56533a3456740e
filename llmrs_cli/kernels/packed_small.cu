// y = x · Wᵀ for M ≤ 8 tokens and 4-bit W: one pass over W at memory speed.
//
// Blocks take turns at TILES tiles of 16 rows below one another and all of K, so that together they move through W in a
// narrow window: each page of memory that comes into use costs a translation. Columns of 128 of all the turns of a block
// are dealt to its warps one by one, and each warp streams its own through a ring in shared memory: no barrier, and the
// stream does not stop between turns. A warp leaves its sums of a turn in shared memory, and the block meets when `held`
// turns wait, or once at its end. Some of the first steps are on their way before wait_for_previous(). Weights are the
// first operand of mma.m16n8k16: codes minus zeros of bfloat16, codes as they are of float16, both exactly. A group's sums
// are scaled in float32.
//
// Prologue  plain: x travels beside its weights.   norm: once a block.
// Epilogues stand in linear.cuh.
#include "mma.cuh"

#ifndef WARPS
#define WARPS 14
#endif
#ifndef TILES
#define TILES 2
#endif
#ifndef STAGES
#define STAGES 2
#endif

#include "linear.cuh"
#include "packed4.cuh"

constexpr int ROWS = TILE_ROWS * TILES;
constexpr int ROW_STRIDE = ROWS + 4;               // of sums in shared memory, in floats: no bank conflicts
constexpr int WEIGHT_BYTES = TILES * TILE_BYTES;   // of a step
constexpr int X_STRIDE = 2 * TILE_COLUMNS + 16;    // bytes of a token beside them: no bank conflicts
constexpr int PIECES = (TILE_BYTES - CODE_BYTES) / 16, ALL_PIECES = TILES * PIECES;  // of the heads, 16 bytes each
constexpr int HEAD_COPIES = (ALL_PIECES + 31) / 32;

// Adds the products of COUNT tiles below one another and 128 values of every token; x_row is where this lane's row of the
// first 8 × 8 matrices begins.
template <int COUNT> DEVICE void multiply(float (*total)[4], const u8* tiles, u32 x_row, int lane) {
    constexpr bool PLAIN = !BF16;
    constexpr u32 ONES = 0x3c003c00;  // of float16
    float sum[COUNT][4], sum_of_x[4];
    uint4 codes[COUNT];
    Head head[COUNT];
    PlainHead plain[COUNT];
    u32 x[4];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (step % 4 == 0)
#pragma unroll
            for (int t = 0; t < COUNT; t++) codes[t] = read_codes(tiles + t * TILE_BYTES, step / 4, lane);
        if (step % 2 == 0) load_matrices(x, x_row + step * 32);
        const u32 x0 = x[step % 2 * 2], x1 = x[step % 2 * 2 + 1];
        const bool begins = step % GROUP_STEPS == 0, ends = step % GROUP_STEPS == GROUP_STEPS - 1;
        if constexpr (PLAIN) {
            if (begins) sum_of_x[0] = sum_of_x[1] = sum_of_x[2] = sum_of_x[3] = 0.0f;
            mma(sum_of_x, ONES, ONES, ONES, ONES, x0, x1);
        }
#pragma unroll
        for (int t = 0; t < COUNT; t++) {
            const u8* tile = tiles + t * TILE_BYTES;
            if (begins) {
                if constexpr (PLAIN) plain[t] = read_plain_head(tile, step / GROUP_STEPS, lane / 4);
                else head[t] = read_head(tile, step / GROUP_STEPS, lane / 4);
                sum[t][0] = sum[t][1] = sum[t][2] = sum[t][3] = 0.0f;
            }
            u32 a[4];
            if constexpr (PLAIN) plain_codes(word_of(codes[t], step), a);
            else decode(word_of(codes[t], step), head[t], a);
            mma(sum[t], a[0], a[1], a[2], a[3], x0, x1);
            if (ends)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if constexpr (PLAIN)
                        total[t][i] += plain[t].scale[i / 2] * __fmaf_rn(-plain[t].zero[i / 2], sum_of_x[i], sum[t][i]);
                    else total[t][i] += head[t].scale[i / 2] * sum[t][i];
                }
        }
    }
}

// Tiles below one another.
struct Rows {
    u32 first, count;
};

// `whole`: turns that all blocks take; `share`: tiles of a block's run after them, times 2³². The host divides: a kernel that
// begins with integer divisions begins late.
DEVICE void linear(const Problem& p, int epilogue, const u8* packed, u32 whole, u64 share) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
    const u32 across = (u32(p.k) + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const bool norm = p.norm != nullptr, gated = epilogue == SILU;
    const int row_stride = across * TILE_COLUMNS + 8;
    const int x_bytes = norm ? 0 : p.m * X_STRIDE, turn_sums = WARPS * p.m * ROW_STRIDE;
    u8* behind = shared + WARPS * STAGES * WEIGHT_BYTES;                            // [WARPS][STAGES] steps of weights
    auto slot_at = [&](int slot) { return shared + (warp * STAGES + slot) * WEIGHT_BYTES; };
    const u32 x_ring = shared_address(behind + warp * STAGES * x_bytes);            // [WARPS][STAGES] steps
    float* partial = reinterpret_cast<float*>(behind + WARPS * STAGES * x_bytes);   // [held][WARPS][M][ROW_STRIDE]
    float* scratch = partial + p.held * turn_sums;                                  // norm only: [8][WARPS] sums,
    float* factors = scratch + 8 * WARPS;                                           // [8] factors,
    float* gains = factors + 8;                                                     // [K] its weights,
    HALF* rows_of_x = reinterpret_cast<HALF*>(gains + p.k);                         // [M][row_stride] values

    // Turns of TILES tiles for every block; what is left over is cut into a run for each.
    const u32 blocks = gridDim.x, block = blockIdx.x;
    const u32 run = block * share >> 32, run_count = ((block + 1) * share >> 32) - run;
    const u32 turns = whole + (run_count + TILES - 1) / TILES, rest = whole * blocks * TILES + run;
    auto rows_of = [&](u32 turn) {
        if (turn < whole) return Rows{(turn * blocks + block) * TILES, TILES};
        const u32 done = (turn - whole) * TILES;
        return Rows{rest + done, done < run_count ? min(run_count - done, u32(TILES)) : 0};
    };

    // The copies run ahead of the products, with their own place.
    u32 ahead_turn = 0, ahead_column = warp, ahead_count = 0;
    const u8* from = nullptr;
    const u32 next_unit = (across - 1) * UNIT_BYTES;
    auto find = [&]() {  // the first tile of where they are
        for (; ahead_column >= across; ahead_column -= across) ahead_turn++;
        const Rows rows = rows_of(ahead_turn);
        ahead_count = rows.count;
        from = packed + i64(rows.first / UNIT_TILES * across + ahead_column) * UNIT_BYTES + rows.first % UNIT_TILES * TILE_BYTES;
        return rows.first % UNIT_TILES;
    };
    // A lane has its piece of each half of a tile's codes; the pieces of all heads are dealt to the lanes.
    u32 below[TILES] = {}, heads[HEAD_COPIES] = {};  // bytes from there to another tile, and to a piece of a head
    auto tile_of = [](u32 i) { return (i * 32 + threadIdx.x % 32) / PIECES; };
    auto piece_of = [](u32 i) { return CODE_BYTES + (i * 32 + threadIdx.x % 32) % PIECES * 16; };
    auto locate = [&]() {
        const u32 tile = find();
        auto down = [&](u32 t) { return t * TILE_BYTES + (tile + t) / UNIT_TILES * next_unit; };
        from += lane * 16;
#pragma unroll
        for (int t = 1; t < TILES; t++) below[t] = down(t);
#pragma unroll
        for (int i = 0; i < HEAD_COPIES; i++) heads[i] = down(tile_of(i)) + piece_of(i) - lane * 16;
    };
    auto copy_weights = [&](int slot) {
        const u32 to = shared_address(slot_at(slot));
#pragma unroll
        for (u32 t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < CODE_BYTES; i += 512)
                copy_async(to + t * TILE_BYTES + i + lane * 16, from + below[t] + i, t < ahead_count);
#pragma unroll
        for (int i = 0; i < HEAD_COPIES; i++)
            if (i * 32 + lane < ALL_PIECES)
                copy_async(to + tile_of(i) * TILE_BYTES + piece_of(i), from + heads[i], tile_of(i) < ahead_count);
        ahead_column += WARPS, from += WARPS * UNIT_BYTES;
        if (ahead_column >= across) locate();
    };
    // Of x likewise: a lane has eight values of every other token.
    const u32 x_lane = lane % 16 * 8;
    const u32 x_to = x_ring + lane / 16 * X_STRIDE + x_lane * 2;
    const HALF* x_from = nullptr;
    u32 x_column = warp;
    auto locate_x = [&]() {
        for (; x_column >= across;) x_column -= across;
        x_from = p.x + i64(lane / 16) * p.k + x_column * TILE_COLUMNS + x_lane;
    };
    auto copy_x = [&](int slot) {
        const HALF* at = x_from;
        const bool inside = x_column * TILE_COLUMNS + x_lane < p.k;
        u32 to = x_to + slot * x_bytes;
#pragma unroll 1
        for (int token = lane / 16; token < p.m; token += 2, at += 2 * p.k, to += 2 * X_STRIDE) copy_async(to, at, inside);
        x_column += WARPS, x_from += WARPS * TILE_COLUMNS;
        if (x_column >= across) locate_x();
    };

    // Where the sums of a turn go.
    const int outputs = p.m * (gated ? ROWS / 2 : ROWS);
    struct Output {
        u32 place, token, r, row;  // turn that waits, token, row of the turn; row of W, or n where there is none
    };
    auto output_at = [&](u32 first, u32 item) {
        const u32 r = gated ? item % (ROWS / 2) / 8 * 16 + item % 8 : item % ROWS;
        const u32 pair = gated ? item / (ROWS / 2) : item / ROWS, place = p.m == 1 ? pair : pair / u32(p.m);
        const Rows rows = rows_of(first + place);
        return Output{place, pair - place * p.m, r, r < rows.count * TILE_ROWS ? rows.first * TILE_ROWS + r : u32(p.n)};
    };
    // What the sum is added to: its bias, but for SILU, and what is there. SILU adds its biases when it writes.
    auto bias_of = [&](const Output& o) { return !gated && p.bias && o.row < p.n ? p.bias[o.row] : 0.0f; };
    auto sum_of = [&](const Output& o) {
        return epilogue == ADD && o.row < p.n ? static_cast<float*>(p.out)[i64(o.token) * p.n + o.row] : 0.0f;
    };

    allow_next();
    if (norm)  // norm_rows() has each thread read what it copies here
#pragma unroll 1
        for (int k = threadIdx.x * 4; k < p.k; k += WARPS * 128) copy_async(shared_address(gains + k), p.norm + k, true);
    copy_commit();
    locate();
#pragma unroll 1
    for (int s = 0; s < p.early; s++) {
        copy_weights(s);
        copy_commit();
    }
    // What a sum is added to is on its way meanwhile.
    const bool has_early = int(threadIdx.x) < min(p.held, int(turns)) * outputs;
    const Output first_output = output_at(0, threadIdx.x);
    float early = has_early ? bias_of(first_output) : 0.0f;
    Problem own = p;
    Row<3> single;
    if (norm) {
        own.norm = gains;
#pragma unroll 1
        for (int token = 0; token < p.m; token++)  // columns that fill up the last step
            for (int k = p.k + threadIdx.x; k < across * TILE_COLUMNS; k += WARPS * 32)
                rows_of_x[token * row_stride + k] = 0;
    }
    wait_for_previous();
    if (norm) single.load_residual(p);
    locate_x();
#pragma unroll 1
    for (int s = 0; s < STAGES; s++) {
        if (s >= p.early) copy_weights(s);
        if (!norm) copy_x(s);
        copy_commit();
    }
    if (has_early) early += sum_of(first_output);
    if (norm) {
        copy_wait<STAGES>();
        single.load_weights(own);
        norm_rows<8>(own, single, rows_of_x, row_stride, scratch, factors);
    }

    auto meet = [&](u32 first, int count) {
        __syncthreads();
#pragma unroll 1
        for (int item = threadIdx.x; item < count * outputs; item += WARPS * 32) {
            const Output o = output_at(first, item);
            if (o.row >= p.n) continue;
            const float* mine = partial + o.place * turn_sums + o.token * ROW_STRIDE + o.r;
            float value = 0.0f, up = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++, mine += p.m * ROW_STRIDE) {
                value += mine[0];
                if (gated) up += mine[8];
            }
            const float factor = norm ? factors[o.token] : p.alpha;
            if (gated) {
                write_out<SILU>(p, o.token, o.row, value * factor, up * factor);
                continue;
            }
            const float base = first == 0 && item == int(threadIdx.x) ? early : bias_of(o) + sum_of(o);
            const float y = base + value * factor;
            const i64 at = i64(o.token) * p.n + o.row;
            if (epilogue == STORE) static_cast<HALF*>(p.out)[at] = to_half(y);
            else static_cast<float*>(p.out)[at] = y;
        }
        if (first + count < turns) __syncthreads();
    };

    float total[TILES][4];
    float* own_sums = partial + (warp * p.m + 2 * c) * ROW_STRIDE + g;
    auto keep = [&](int place) {
        float* mine = own_sums + place * turn_sums;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (2 * c + i % 2 >= p.m) continue;
#pragma unroll
            for (int t = 0; t < TILES; t++) mine[i % 2 * ROW_STRIDE + t * TILE_ROWS + i / 2 * 8] = total[t][i];
        }
    };
    // Where this lane's row of each 8 × 8 matrix of x begins; tokens past M repeat the last one.
    const int row = min(int(lane % 8), p.m - 1);
    const u32 x_row = (norm ? shared_address(rows_of_x) + row * row_stride * 2 : x_ring + row * X_STRIDE) + lane / 8 * 16;

    int slot = 0, kept = 0;
    u32 column = warp;
#pragma unroll 1
    for (u32 turn = 0; turn < turns; turn++) {
        const u32 count = rows_of(turn).count;
#pragma unroll
        for (int t = 0; t < TILES; t++) total[t][0] = total[t][1] = total[t][2] = total[t][3] = 0.0f;
#pragma unroll 1
        for (; column < across; column += WARPS) {
            copy_wait<STAGES - 1>();
            __syncwarp();  // what other lanes copied is here
            const u8* held = slot_at(slot);
            const u32 x_at = x_row + (norm ? column * TILE_COLUMNS * 2 : slot * x_bytes);
            if (count == TILES) {
                multiply<TILES>(total, held, x_at, lane);
            } else {
#pragma unroll
                for (u32 t = 0; t < TILES - 1; t++)
                    if (t < count) multiply<1>(total + t, held + t * TILE_BYTES, x_at, lane);
            }
            __syncwarp();  // all have read
            copy_weights(slot);
            if (!norm) copy_x(slot);
            copy_commit();
            if (++slot == STAGES) slot = 0;
        }
        column -= across;
        keep(kept++);
        if (kept == p.held || turn == turns - 1) meet(turn + 1 - kept, kept), kept = 0;
    }
    copy_wait<0>();
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) packed_small(
    const u8* packed, const HALF* x, const float* residual, const float* norm, float eps, float alpha, const float* bias,
    void* out, int m, int n, int k, int whole, int held, int early, int epilogue, u64 share) {
    Problem p{};
    p.x = x, p.residual = residual, p.norm = norm, p.eps = eps, p.alpha = alpha;
    p.bias = bias, p.out = out, p.m = m, p.n = n, p.k = k, p.held = held, p.early = early;
    linear(p, epilogue, packed, whole, share);
}
