// y = x · Wᵀ for M ≤ 8 tokens and 4-bit W: one pass over W at memory speed.
//
// A worker is a warp. It streams a run of units of 16 · TILES rows and 128 columns, contiguous along K, through a ring
// of its own in shared memory: no barrier, and warps drift apart as memory pleases. The first STAGES units are on their
// way before wait_for_previous(). Weights are the first operand of mma.m16n8k16, codes minus zeros exactly; a group's
// sums are scaled in float32. Where runs cut a column of units, parts meet as runs.cuh says.
//
// Prologue  plain: x travels in the ring beside its unit.   norm: once a block. Epilogues stand in linear.cuh.
#include "mma.cuh"

#ifndef WARPS
#define WARPS 8
#endif
#ifndef TILES
#define TILES 4
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef RESIDENT
#define RESIDENT 1
#endif

#include "linear.cuh"
#include "packed4.cuh"
#include "runs.cuh"
#include "write_any.cuh"

constexpr int ROWS = TILE_ROWS * TILES;
constexpr int WEIGHT_BYTES = TILES * TILE_BYTES;         // of a unit
constexpr int X_STRIDE = 2 * TILE_COLUMNS + 16;          // bytes of a token beside a unit: no bank conflicts

DEVICE void linear(const Problem& p, int epilogue, const u8* packed, float* partials, int* arrivals, u32 workers) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 across = (p.k + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const Line line{(p.n + ROWS - 1) / ROWS * across, workers, across};
    const bool norm = p.norm != nullptr;
    const int slot_bytes = WEIGHT_BYTES + (norm ? 0 : p.m * X_STRIDE);
    float* scratch = reinterpret_cast<float*>(shared + WARPS * STAGES * slot_bytes);  // norm only: [8][WARPS] sums,
    float* factors = scratch + 8 * WARPS;                                             // [8] factors,
    HALF* normed = reinterpret_cast<HALF*>(factors + 8);                              // [M][normed_stride] values
    const int normed_stride = across * TILE_COLUMNS + 8;

    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
    u8* ring = shared + warp * STAGES * slot_bytes;
    const u32 worker = blockIdx.x * WARPS + warp;
    u32 unit = 0, past = 0;
    if (worker < workers) unit = line.start_of(worker), past = line.start_of(worker + 1);
    const u32 start = unit;

    // The copies run ahead of the products, with their own place: a row of units, and a column of it.
    auto copy_weights = [&](int slot, u32 row, u32 column) {
        const i64 whole = i64(row * TILES / UNIT_TILES) * across + column;
        const u8* from = packed + whole * UNIT_BYTES + row * TILES % UNIT_TILES * TILE_BYTES + lane * 16;
        const u32 to = shared_address(ring) + slot * slot_bytes + lane * 16;
#pragma unroll
        for (int i = 0; i < WEIGHT_BYTES; i += 512)
            if (i + 512 <= WEIGHT_BYTES || lane * 16 < WEIGHT_BYTES - i) copy_async(to + i, from + i, true);
    };
    auto copy_x = [&](int slot, u32 column) {
        const u32 to = shared_address(ring) + slot * slot_bytes + WEIGHT_BYTES + lane % 16 * 16;
        const int k = column * TILE_COLUMNS + lane % 16 * 8;
#pragma unroll 1
        for (int token = lane / 16; token < p.m; token += 2)
            copy_async(to + token * X_STRIDE, p.x + i64(token) * p.k + k, k < p.k);
    };
    auto advance = [&](u32& row, u32& column) {
        if (++column == across) column = 0, row++;
    };

    allow_next();
    u32 next = unit, next_row = unit / across, next_column = unit % across;
    {
        u32 row = next_row, column = next_column;
        for (int s = 0; s < STAGES; s++) {
            if (unit + s < past) copy_weights(s, row, column);
            copy_commit();
            advance(row, column);
        }
    }
    if (norm) {  // columns that fill up the last unit
        const int filling = across * TILE_COLUMNS - p.k;
        for (int i = threadIdx.x; i < p.m * filling; i += WARPS * 32)
            normed[i / filling * normed_stride + p.k + i % filling] = 0;
    }
    wait_for_previous();
    if (norm) {
        norm_rows<8>(p, normed, normed_stride, scratch, factors);
        __syncthreads();
    }
    for (int s = 0; s < STAGES; s++, next++) {
        if (!norm && next < past) copy_x(s, next_column);
        copy_commit();
        advance(next_row, next_column);
    }

    float total[TILES][4];
    // Where this lane's row of each 8 × 8 matrix of x begins; tokens past M repeat the last one.
    const int own = min(lane % 8, p.m - 1);
    const u32 x_row = (norm ? shared_address(normed) + own * normed_stride * 2
                            : shared_address(ring) + WEIGHT_BYTES + own * X_STRIDE) + lane / 8 * 16;
    auto multiply = [&](int slot, u32 at) {
        const u8* tiles = ring + slot * slot_bytes;
        const u32 x_at = norm ? at * TILE_COLUMNS * 2 : slot * slot_bytes;
        float sum[TILES][4];
        uint4 codes[TILES];
        Head head[TILES];
        u32 x[4];
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step % 4 == 0)
#pragma unroll
                for (int t = 0; t < TILES; t++) codes[t] = read_codes(tiles + t * TILE_BYTES, step / 4, lane);
            if (step % 2 == 0) load_matrices(x, x_row + x_at + step * 32);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                if (step % GROUP_STEPS == 0) {
                    head[t] = read_head(tiles + t * TILE_BYTES, step / GROUP_STEPS, g);
                    sum[t][0] = sum[t][1] = sum[t][2] = sum[t][3] = 0.0f;
                }
                u32 a[4];
                decode(word_of(codes[t], step), head[t], a);
                mma(sum[t], a[0], a[1], a[2], a[3], x[step % 2 * 2], x[step % 2 * 2 + 1]);
                if (step % GROUP_STEPS == GROUP_STEPS - 1)
#pragma unroll
                    for (int i = 0; i < 4; i++) total[t][i] += head[t].scale[i / 2] * sum[t][i];
            }
        }
    };
    // Lanes whose tokens exist move a part of a column's sums: each value to the same place in every part.
    auto each = [&](auto visit) {
        if (2 * c >= p.m) return;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) visit(total[t][i], (t * 4 + i) * 32 + c * 8 + g);
    };
    auto gather = [&](u32 row) {
        constexpr int PART = ROWS * 8;
        const Sharers sharers(line, row);
        float* mine = partials + i64(sharers.slot_of(worker)) * PART;
        each([&](float value, int at) { mine[at] = value; });
        __threadfence();
        __syncwarp();
        int before = 0;
        if (lane == 0) before = atomicAdd(&arrivals[row], 1);
        if (__shfl_sync(FULL, before, 0) != int(sharers.count()) - 1) return false;
        __threadfence();
        each([](float& value, int) { value = 0.0f; });
        constexpr int AT_ONCE = 4;  // parts that are on their way: each takes the time of a visit to L2
#pragma unroll 1
        for (u32 w = sharers.first; w <= sharers.last; w += AT_ONCE) {
            float held[AT_ONCE][TILES * 4] = {};
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const float* part = partials + i64(sharers.slot_of(w + j)) * PART + c * 8 + g;
                if (w + j <= sharers.last && 2 * c < p.m)
#pragma unroll
                    for (int i = 0; i < TILES * 4; i++)
                        if (2 * c + i % 2 < p.m) held[j][i] = part[i * 32];
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
                for (int i = 0; i < TILES * 4; i++) total[i / 4][i % 4] += held[j][i];
        }
        if (lane == 0) arrivals[row] = 0;
        return true;
    };
    auto write = [&](u32 row) {
        const int first = row * ROWS + g;
        const float factor[2] = {norm && 2 * c < p.m ? factors[2 * c] : p.alpha,
                                 norm && 2 * c + 1 < p.m ? factors[2 * c + 1] : p.alpha};
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = first + t * TILE_ROWS + i / 2 * 8;
                total[t][i] = total[t][i] * factor[i % 2] + (p.bias && r < p.n ? p.bias[r] : 0.0f);
            }
        write_tiles(p, epilogue, total, [&](int t, int i) {
            const int token = 2 * c + i % 2, r = first + t * TILE_ROWS + i / 2 * 8;
            return Target{token, r, token < p.m && r < p.n};
        });
    };

    int slot = 0;
#pragma unroll 1
    while (unit < past) {
        const u32 row = unit / across, begin = row * across, end = min(past, begin + across);
        each([](float& value, int) { value = 0.0f; });
#pragma unroll 1
        for (; unit < end; unit++) {
            copy_wait<STAGES - 1>();
            __syncwarp();  // what other lanes copied is here
            multiply(slot, unit - begin);
            __syncwarp();  // all have read
            if (next < past) {
                copy_weights(slot, next_row, next_column);
                if (!norm) copy_x(slot, next_column);
                advance(next_row, next_column);
            }
            copy_commit();
            next++;
            if (++slot == STAGES) slot = 0;
        }
        const bool whole = start <= begin && end == begin + across;
        if (whole || gather(row)) write(row);
    }
    copy_wait<0>();
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, RESIDENT) packed_small(
    const u8* packed, const HALF* x, const float* residual, const int* rows, const float* norm, float eps, float alpha,
    const float* bias, void* out,
    float* partials,  // [2 · workers][ROWS · 8]
    int* arrivals,    // one for each column of units, zero before and after
    int m, int n, int k, u32 workers, int epilogue) {
    Problem p{};
    p.x = x, p.residual = residual, p.rows = rows, p.norm = norm, p.eps = eps, p.alpha = alpha;
    p.bias = bias, p.out = out, p.m = m, p.n = n, p.k = k;
    linear(p, epilogue, packed, partials, arrivals, workers);
}
