// y = x · Wᵀ for more tokens and 4-bit W: a block multiplies 16 · WARPS rows with TOKENS tokens, 128 columns at a time.
//
// Weights are the first operand, one tile of 16 rows a warp, codes minus zeros exactly; a group's sums are scaled in
// float32. Tokens are the second operand, in shared memory for all warps. On Hopper the product is a wgmma of four
// warps with its first operand in registers, elsewhere mma.m16n8k16. Both operands come through one ring of STAGES
// stages, of which the first weights are on their way before wait_for_previous().
//
// The work is a line of column units (128 columns of one tile of outputs), cut evenly among blocks as runs.cuh says;
// where whole tiles divide well among the blocks (`whole`), each takes every so many of them instead.
#include "mma.cuh"

#ifndef WARPS
#define WARPS 8
#endif
#ifndef TOKENS
#define TOKENS 64
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef RESIDENT
#define RESIDENT 2
#endif

#include "packed4.cuh"
#include "runs.cuh"
#include "wgmma.cuh"
#include "write_any.cuh"

constexpr int THREADS = WARPS * 32, ROWS = WARPS * TILE_ROWS, NT = TOKENS / 8;
constexpr int HALF_BYTES = TOKENS * 128;                 // 64 columns of x, swizzled as wgmma.cuh says
constexpr int WEIGHT_BYTES = ROWS / UNIT_ROWS * UNIT_BYTES;
constexpr int STAGE_BYTES = (2 * HALF_BYTES + WEIGHT_BYTES + 1023) / 1024 * 1024;

// Sums over the columns of one group, of which the first step is `first`. x: the stage's tokens in shared memory.
// `meanwhile` runs while the tensor cores are busy.
template <class Meanwhile>
DEVICE void multiply_group(float (&sum)[NT][4], const uint4 (&codes)[2], const Head& head, u32 x, int first, int lane,
                           const Meanwhile& meanwhile) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    u32 a[GROUP_STEPS][4];
#pragma unroll
    for (int i = 0; i < GROUP_STEPS; i += 2) {  // the tensor cores are busy with two steps while two are decoded
#pragma unroll
        for (int j = i; j < i + 2; j++) decode(word_of(codes[(first + j) / 4], first + j), head, a[j]);
        wgmma_begin();
#pragma unroll
        for (int j = i; j < i + 2; j++) {
            const int step = first + j;
            wgmma(sum, a[j], wgmma_operand(x + step / 4 * HALF_BYTES, step % 4), j != 0);
        }
        wgmma_end();
    }
    meanwhile();
    wgmma_wait();
    wgmma_results(sum);
#else
    meanwhile();
    const int row = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < NT; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
#pragma unroll
    for (int i = 0; i < GROUP_STEPS; i++) {
        const int step = first + i, piece = step % 4 * 2 + lane / 8 % 2;
        u32 a[4];
        decode(word_of(codes[step / 4], step), head, a);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            u32 b[4];
            load_matrices(b, x + step / 4 * HALF_BYTES + (n * 8 + row) * 128 + (piece ^ row % 8) * 16);
            mma(sum[n], a[0], a[1], a[2], a[3], b[0], b[1]);
            mma(sum[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
    }
#endif
}

// Where the copies of a block are: the next unit of a tile of outputs, and what this thread reads of it.
struct Cursor {
    u32 tile, unit;
    const u8* weights;
    const HALF* x;
    int unit_rows, tokens, columns;  // that are left from there on
};

DEVICE void linear(const Problem& p, int epilogue, const u8* packed, float* partials, int* arrivals, u32 workers,
                   bool whole) {
    extern __shared__ __align__(16) u8 shared[];
    __shared__ int last_arrival;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
    const u32 ring = (shared_address(shared) + 1023) & ~1023u;
    const u8* ring_memory = shared + (ring - shared_address(shared));

    const u32 across = (p.k + TILE_COLUMNS - 1) / TILE_COLUMNS, token_tiles = (p.m + TOKENS - 1) / TOKENS;
    const u32 tiles = (p.n + ROWS - 1) / ROWS * token_tiles, worker = blockIdx.x;
    const Line line{tiles * across, workers, across};
    const u32 start = whole ? worker * across : line.start_of(worker), stride = whole ? workers : 1;
    u32 left = whole ? (tiles - worker + workers - 1) / workers * across : line.start_of(worker + 1) - start;

    // What does not change from unit to unit: this thread's places in it.
    const int piece = threadIdx.x % 16, row = threadIdx.x / 16;
    constexpr int COPIES = (WEIGHT_BYTES + THREADS * 16 - 1) / (THREADS * 16);
    u32 offsets[COPIES];
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const u32 at = (i * THREADS + threadIdx.x) * 16;
        offsets[i] = at + at / UNIT_BYTES * (across - 1) * UNIT_BYTES;
    }
    auto seek = [&](u32 tile, u32 unit) {
        const u32 unit_row = tile / token_tiles * (ROWS / UNIT_ROWS);
        const int token = tile % token_tiles * TOKENS + row, column = unit * TILE_COLUMNS + piece * 8;
        const int unit_rows = (p.n + UNIT_ROWS - 1) / UNIT_ROWS;
        return Cursor{tile, unit, packed + (i64(unit_row) * across + unit) * UNIT_BYTES,
                      p.x + i64(token) * p.k + column, unit_rows - int(unit_row), p.m - token, p.k - column};
    };
    auto advance = [&](Cursor& at) {
        at.weights += UNIT_BYTES, at.x += TILE_COLUMNS, at.columns -= TILE_COLUMNS;
        if (++at.unit == across) at = seek(at.tile + stride, 0);
    };
    auto copy_weights = [&](int stage, const Cursor& from) {
        const u32 to = ring + stage * STAGE_BYTES + 2 * HALF_BYTES + threadIdx.x * 16;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int at = (i * THREADS + threadIdx.x) * 16;
            if (at < WEIGHT_BYTES)
                copy_async(to + i * THREADS * 16, from.weights + offsets[i], at / UNIT_BYTES < from.unit_rows);
        }
    };
    auto copy_x = [&](int stage, const Cursor& from) {
        const u32 to = ring + stage * STAGE_BYTES + piece / 8 * HALF_BYTES + row * 128 + (piece % 8 ^ row % 8) * 16;
#pragma unroll
        for (int i = 0; i < TOKENS; i += THREADS / 16)  // a multiple of 8, so that the swizzle stays
            if (i + row < TOKENS)
                copy_async(to + i * 128, from.x + i64(i) * p.k, i < from.tokens && from.columns > 0);
    };

    allow_next();
    const Cursor begin = seek(start / across, start % across);
    Cursor load = begin;
    u32 to_load = left;
    for (int s = 0; s < min(STAGES - 1, int(left)); s++, advance(load)) copy_weights(s, load);
    wait_for_previous();
    load = begin;
    for (int s = 0; s < STAGES - 1; s++) {
        if (to_load) copy_x(s, load), to_load--, advance(load);
        copy_commit();  // the first also holds all weights so far
    }

    float total[NT][4];
    auto multiply = [&](int stage, const auto& meanwhile) {
        const u8* tile = ring_memory + stage * STAGE_BYTES + 2 * HALF_BYTES + warp * TILE_BYTES;
        const uint4 codes[2] = {read_codes(tile, 0, lane), read_codes(tile, 1, lane)};
#pragma unroll
        for (int group = 0; group < TILE_COLUMNS / GROUP; group++) {
            float sum[NT][4];
            const Head head = read_head(tile, group, g);
            multiply_group(sum, codes, head, ring + stage * STAGE_BYTES, group * GROUP_STEPS, lane, [&] {
                if (group == 0) meanwhile();
            });
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) total[n][i] += head.scale[i / 2] * sum[n][i];
        }
    };
    auto clear = [&] {
#pragma unroll
        for (int n = 0; n < NT; n++) total[n][0] = total[n][1] = total[n][2] = total[n][3] = 0.0f;
    };
    // This block's part of the tile is stored; true in the block that is the last to do so, with the sum of all parts.
    auto gather = [&](u32 tile) {
        constexpr int PART = ROWS * TOKENS;
        const Sharers sharers(line, tile);
        const int live = p.m - int(tile % token_tiles) * TOKENS;  // tokens
        float* mine = partials + i64(sharers.slot_of(worker)) * PART + threadIdx.x;
#pragma unroll
        for (int n = 0; n < NT; n++)
            if (n * 8 < live)
#pragma unroll
                for (int i = 0; i < 4; i++) mine[(n * 4 + i) * THREADS] = total[n][i];
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) last_arrival = atomicAdd(&arrivals[tile], 1) == int(sharers.count()) - 1;
        __syncthreads();
        if (!last_arrival) return false;
        __threadfence();
        clear();
#pragma unroll 1
        for (u32 w = sharers.first; w <= sharers.last; w++) {
            const float* part = partials + i64(sharers.slot_of(w)) * PART + threadIdx.x;
#pragma unroll
            for (int n = 0; n < NT; n++)
                if (n * 8 < live)
#pragma unroll
                    for (int i = 0; i < 4; i++) total[n][i] += part[(n * 4 + i) * THREADS];
        }
        if (threadIdx.x == 0) arrivals[tile] = 0;
        return true;
    };
    auto write = [&](u32 tile) {
        const int first = tile / token_tiles * ROWS + warp * TILE_ROWS + g, token = tile % token_tiles * TOKENS + 2 * c;
        float bias[2] = {};
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (p.bias && first + i * 8 < p.n) bias[i] = p.bias[first + i * 8];
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) total[n][i] = total[n][i] * p.alpha + bias[i / 2];
        write_tiles(p, epilogue, total, [&](int n, int i) {
            const int t = token + n * 8 + i % 2, r = first + i / 2 * 8;
            return Target{t, r, t < p.m && r < p.n};
        });
    };

    int stage = 0;
    u32 tile = begin.tile, unit = begin.unit;
#pragma unroll 1
    for (; left; tile += stride, unit = 0) {
        const u32 count = min(left, across - unit);
        clear();
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            copy_wait<STAGES - 2>();
            fence_for_wgmma();
            __syncthreads();  // this stage is here, and nobody reads the one before it any more
            multiply(stage, [&] {
                const int freed = stage == 0 ? STAGES - 1 : stage - 1;
                if (to_load) {
                    copy_weights(freed, load), copy_x(freed, load);
                    to_load--, advance(load);
                }
                copy_commit();
            });
            if (++stage == STAGES) stage = 0;
        }
        left -= count;
        if (count == across || gather(tile)) write(tile);
    }
    copy_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) packed_large(
    const u8* packed, const HALF* x, float alpha, const float* bias, void* out,
    float* partials,  // [2 · workers][ROWS · TOKENS]
    int* arrivals,    // one for each tile of outputs, zero before and after
    int m, int n, int k, u32 workers, int whole, int epilogue) {
    Problem p{};
    p.x = x, p.alpha = alpha, p.bias = bias, p.out = out, p.m = m, p.n = n, p.k = k;
    linear(p, epilogue, packed, partials, arrivals, workers, whole);
}
