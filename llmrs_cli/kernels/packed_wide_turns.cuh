// What a block of packed_wide has in shared memory, the turns that it takes, and the copies for them. Its macros are there.
#pragma once
#include "cluster_barrier.cuh"
#include "linear.cuh"
#include "packed4.cuh"

constexpr int MULTIPLIERS = 128 * WGS, THREADS = WARPS * 32, NT = TOKENS / 8;
constexpr int HALF_BYTES = TOKENS * 128, X_BYTES = 2 * HALF_BYTES;  // 64 columns of x, and a step's
constexpr int STAGE_BYTES = (X_BYTES + WGS * UNIT_BYTES + 1023) / 1024 * 1024;
constexpr int SHARE = (NT + SLICES - 1) / SLICES;           // eights of tokens that a block writes, at most
constexpr int EIGHT_BYTES = UNIT_ROWS * 8 * 4;              // sums of a warpgroup and eight tokens
constexpr int GROUP_BYTES = SHARE * (SLICES - 1) * EIGHT_BYTES, SUM_BYTES = WGS * GROUP_BYTES;  // from the other blocks
constexpr int ROOM_BYTES = BY_WARPS ? NT * 4 * 32 * 16 : 0;  // of a group of four warps that exchange sums
// Registers are shared out among the threads and SPARE more, which small kernels find beside a block; what the copying warps
// can do without goes to the others.
constexpr int COPYING = 32, LAUNCHED = 65536 / RESIDENT / (THREADS + SPARE) / 8 * 8;
constexpr int SPARED = (LAUNCHED * (WGS + 1) - COPYING) / WGS / 8 * 8, REGISTERS = SPARED < 240 ? SPARED : 240;

typedef float Sums[NT][4];  // of rows g and g + 8 (i / 2) of a warp's 16, and of tokens 8n + 2c + i % 2

// What a block has in shared memory, by address.
struct Shared {
    u32 ring, sums;
    u32 full, empty;     // barriers of a stage: its copies are here; all warps have read it
    u32 ready, read;     // of a warpgroup: the others' sums are here; they have read those of this block
    u32 room;            // of each group of warps that exchange sums
    u32 factors;         // (MOST_TOKENS,) on the sums of each token, after a norm
    DEVICE Shared(u32 start) : ring((start + 1023) & ~1023u) {
        sums = ring + STAGES * STAGE_BYTES, room = sums + SUM_BYTES, full = room + WGS * ROOM_BYTES, empty = full + 8 * STAGES;
        ready = empty + 8 * STAGES, read = ready + 8 * WGS, factors = (read + 8 * WGS + 15) & ~15u;
    }
};

struct Work {
    int token_tiles, items, across, unit_rows;
    int whole;  // turns that each block takes alone, before clusters share those that are left
    DEVICE Work(const Problem& p, int whole)
        : token_tiles((p.m + TOKENS - 1) / TOKENS), across((p.k + TILE_COLUMNS - 1) / TILE_COLUMNS),
          unit_rows((p.n + UNIT_ROWS - 1) / UNIT_ROWS), whole(whole) {
        items = (unit_rows + WGS - 1) / WGS * token_tiles;
    }
};

// One turn of a block, if it has one: its first token and unit of rows, and its steps of K.
struct Turn {
    bool any, shared;
    int token, unit, first, past;
    DEVICE Turn(const Work& work, int turn) {
        const int block = blockIdx.x, blocks = gridDim.x, slice = block % SLICES;
        shared = SLICES > 1 && turn >= work.whole;
        int item = turn * blocks + block;
        if (shared) item = work.whole * blocks + (turn - work.whole) * (blocks / SLICES) + block / SLICES;
        any = item < work.items;
        const int rows = work.token_tiles == 1 ? item : item / work.token_tiles;
        token = (item - rows * work.token_tiles) * TOKENS, unit = rows * WGS;
        first = shared ? work.across * slice / SLICES : 0;
        past = shared ? work.across * (slice + 1) / SLICES : work.across;
    }
};

// For a whole warp, of which each lane brings one unit of a step's W.
DEVICE void copy_weights(const Work& work, const Shared& shared, const u8* packed, int fetched, int early) {
    const int lane = threadIdx.x % 32;
    int begun = 0;
    Slot<STAGES> slot;
#pragma unroll 1
    for (int i = 0;; i++) {
        const Turn turn(work, i);
        if (!turn.any) break;
        const int units = min(WGS, work.unit_rows - turn.unit);
        const u8* from = packed + (i64(turn.unit + lane) * work.across + turn.first) * UNIT_BYTES;
#pragma unroll 1
        for (int step = turn.first; step < turn.past; step++, slot.next(), from += UNIT_BYTES) {
            const u32 to = shared.ring + slot.at * STAGE_BYTES + X_BYTES, full = shared.full + slot.at * 8;
            if (begun++ == early) wait_for_previous();
            barrier_wait(shared.empty + slot.at * 8, slot.phase ^ 1);
            if (lane == 0) barrier_expect(full, units * UNIT_BYTES + fetched * 256);
            if (lane < units) copy_bytes(to + lane * UNIT_BYTES, from, UNIT_BYTES, full);
        }
    }
}
// For a whole warp, of which two lanes bring 64 columns each of a step's tokens.
DEVICE void copy_tokens(const Work& work, const Shared& shared, const TensorMap& x) {
    const int lane = threadIdx.x % 32;
    Slot<STAGES> slot;
#pragma unroll 1
    for (int i = 0;; i++) {
        const Turn turn(work, i);
        if (!turn.any) break;
#pragma unroll 1
        for (int step = turn.first; step < turn.past; step++, slot.next()) {
            const u32 to = shared.ring + slot.at * STAGE_BYTES + lane * HALF_BYTES;
            barrier_wait(shared.empty + slot.at * 8, slot.phase ^ 1);
            if (lane < 2) copy_box(to, x, step * TILE_COLUMNS + lane * 64, turn.token, shared.full + slot.at * 8);
        }
    }
}
