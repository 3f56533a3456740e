// What products of many tokens on Hopper share (linear_many.cu, packed_many.cu): tiles, the turns that blocks take at them, and
// the warpgroups that multiply; not how operands come.
//
// A block multiplies a tile of TOKENS = 64 · DEEP · GROUPS tokens with ROWS rows of W, 64 columns a step: each of GROUPS
// warpgroups has DEEP times 64 tokens and all rows. Both operands come through a ring of STAGES steps, tokens before rows, 128
// bytes a line, swizzled as wgmma_shared.cuh says. A stage has two barriers: `full`, which is through when both operands are
// here, and `empty`, when all warpgroups that read what comes to it have left it: those of both blocks where two, a cluster,
// share an operand (PAIR).
//
// The grid fills the GPU once and takes turns at the tiles. Both blocks of a cluster have the same number of turns and steps:
// where there is no tile for one, the copy engine brings zeros and writes nothing. Results leave through shared memory
// (many_epilogue.cuh) while the next tile is multiplied; with LAG the warpgroups are so many steps apart that one multiplies
// while another writes.
//
// Where a tile ends beyond the tokens that there are, warpgroups multiply no 64 tokens that do not exist.
//
// A band of token tiles is multiplied with all rows before the next, token by token of the band, so that what blocks read at
// the same time is little. A token's sums are made in the order of K, whatever the tile.
#pragma once
#ifndef GROUPS
#define GROUPS 2
#endif
#ifndef DEEP
#define DEEP 1
#endif
#ifndef ROWS
#define ROWS 256
#endif
#ifndef LAG
#define LAG 1
#endif
#ifndef EPILOGUE
#define EPILOGUE 0
#endif
#include "cluster_barrier.cuh"
#include "many_epilogue.cuh"
#include "warpgroups.cuh"
#include "wgmma_shared.cuh"

enum Pair { ALONE, SAME_ROWS, SAME_TOKENS };  // what two blocks share

constexpr int TOKENS = 64 * DEEP * GROUPS, COLUMNS = 64, MULTIPLIERS = 128 * GROUPS;
constexpr int X_BYTES = TOKENS * 128, W_BYTES = ROWS * 128, STAGE_BYTES = X_BYTES + W_BYTES;
constexpr int TOGETHER_TOKENS = PAIR == SAME_ROWS ? 2 * TOKENS : TOKENS;  // of a cluster's tiles
constexpr int TOGETHER_ROWS = PAIR == SAME_TOKENS ? 2 * ROWS : ROWS;
// A block's threads begin with the same number of registers; FILLING warpgroups that need but few hand the others the rest.
constexpr int multiplying_registers(int filling, int few) {
    const int launched = 65536 / (128 * (GROUPS + filling)) / 8 * 8;
    const int spared = (launched * (GROUPS + filling) - few * filling) / GROUPS / 8 * 8;
    return spared < 240 ? spared : 240;
}
static_assert(DEEP <= 2, "all of a warpgroup's tokens, 64 of them, or none");
static_assert(LAG < STAGES, "a warpgroup that is ahead needs a stage that the others have not left");

// Tiles of a cluster, in the order in which they are taken: by token inside of a band, then by row, then by band.
struct Work {
    int down, across, band, items, steps;
    DEVICE Work(int m, int n, int k, int band)
        : down((m + TOGETHER_TOKENS - 1) / TOGETHER_TOKENS), across((n + TOGETHER_ROWS - 1) / TOGETHER_ROWS), band(band),
          items(down * across), steps((k + COLUMNS - 1) / COLUMNS) {}
};

// One turn of a block: its first token and row.
struct Turn {
    int token, row;
    DEVICE Turn(const Work& work, int item) {
        const int rank = blockIdx.x % CLUSTER, first = item / (work.band * work.across) * work.band;
        const int wide = min(work.band, work.down - first), left = item - first * work.across, rows = left / wide;
        token = (first + left - rows * wide) * TOGETHER_TOKENS + (PAIR == SAME_ROWS ? rank * TOKENS : 0);
        row = rows * TOGETHER_ROWS + (PAIR == SAME_TOKENS ? rank * ROWS : 0);
    }
};

// `rows` rows of an operand to both blocks of a cluster, of which this one brings a half, or to this one alone.
template <bool BOTH> DEVICE void bring(u32 to, const TensorMap& map, int column, int row, int rows, u32 barrier) {
    const int own = BOTH ? blockIdx.x % 2 * (rows / 2) : 0;
    if constexpr (BOTH) copy_box_to_pair(to + own * 128, map, column, row + own, barrier);
    else copy_box(to, map, column, row, barrier);
}

typedef float Sums[DEEP][ROWS / 8][4];

// What a multiplying warpgroup knows of the ring. `group`: which one it is.
struct Ring {
    u32 bytes, full, empty;
    int group;
    // All threads of the warpgroup are done with a stage, for whoever brings something to it.
    DEVICE void release(int at) const {
        const int thread = threadIdx.x % 128;
        if constexpr (CLUSTER == 1) {
            if (thread == 0) barrier_arrive(empty + at * 8);
        } else if (thread < CLUSTER) {
            barrier_leave_there(cluster_address(empty + at * 8, thread));
        }
    }
};

// A warpgroup without tokens: others need the stages back. Its threads wait for nothing but those that give them back, and
// then for these: one that looked too late would take a stage's next use but one for its own.
DEVICE void pass_over(const Ring& ring, int steps, int pass, Slot<STAGES>& slot) {
#pragma unroll 1
    for (int step = 0; step < steps; step++, slot.next()) {
        if (threadIdx.x % 128 < CLUSTER) {
            barrier_wait(ring.full + slot.at * 8, slot.phase);
            ring.release(slot.at);
        }
        __syncwarp();
        if (LAG && step == pass) meeting_arrive(ring.group + 1, 256);
    }
    meeting_wait(GROUPS + ring.group, 128);
}

// The sums of LIVE times 64 tokens. After the step `pass` the next warpgroup may begin.
template <int LIVE> DEVICE void multiply(const Ring& ring, int steps, int pass, Slot<STAGES>& slot, Sums& d) {
    const u32 xs = ring.bytes + ring.group * DEEP * 64 * 128, ws = ring.bytes + X_BYTES;
    int before = -1;
#pragma unroll 1
    for (int step = 0; step < steps; step++, slot.next()) {
        barrier_wait(ring.full + slot.at * 8, slot.phase);
        const u32 at = uniform(slot.at) * STAGE_BYTES;
        const u64 x = wgmma_operand(xs + at, 0), w = wgmma_operand(ws + at, 0);
#pragma unroll
        for (int e = 0; e < LIVE; e++) wgmma_begin(d[e]);
#pragma unroll
        for (int i = 0; i < COLUMNS / 16; i++)
#pragma unroll
            for (int e = 0; e < LIVE; e++)
                wgmma(d[e], further(x, e * 64 * 128 + i * 32), further(w, i * 32), step > 0 || i > 0);
        wgmma_end();
        if (before >= 0) {  // the step before is done with its stage
            wgmma_wait<1>(d[0]);
            if constexpr (LIVE > 1) touch(d[LIVE - 1]);
            ring.release(before);
        }
        before = slot.at;
        if (LAG && step == pass) meeting_arrive(ring.group + 1, 256);
    }
    wgmma_wait<0>(d[0]);
    if constexpr (LIVE > 1) touch(d[LIVE - 1]);
    ring.release(before);
}

DEVICE void multiply_tiles(const Work& work, const Ring& ring, Writer& writer) {
    Sums d;
    Slot<STAGES> slot;
    int item = blockIdx.x / CLUSTER, pass = ring.group < GROUPS - 1 ? min(LAG, work.steps - 1) : -1;
    if (LAG && ring.group > 0 && item < work.items) meeting_wait(ring.group, 256);
#pragma unroll 1
    for (; item < work.items; item += gridDim.x / CLUSTER, pass = -1) {
        const Turn turn(work, item);
        const int first = turn.token + ring.group * DEEP * 64, left = writer.m - first;
        if (left > (DEEP - 1) * 64) multiply<DEEP>(ring, work.steps, pass, slot, d);
        else if (left <= 0) pass_over(ring, work.steps, pass, slot);
        else if constexpr (DEEP > 1) multiply<1>(ring, work.steps, pass, slot, d);
#pragma unroll
        for (int e = 0; e < DEEP; e++) writer.write(d[e], first + e * 64 + threadIdx.x / 32 % 4 * 16, turn.row);
    }
    writer.finish();
}
