// y = x · Wᵀ for many tokens and 4-bit W on Hopper: warps widen codes in shared memory for the wgmma of others.
//
// many_tiles.cuh says how a block multiplies. HELPERS more warpgroups fill its stages: the first warp starts the copies of
// tokens, which two blocks may share; each other one widens every so many of the tiles of 16 rows (packed_many_codes.cuh), 64
// columns a step. It brings their codes itself, 128 columns at a time, into its part of a ring of CODE_STAGES, and waits for
// nobody but its copies and those who leave a stage. A stage is full when its tokens are here and all these warps are done.
//
// What a warp has stored is seen by wgmma once each of its lanes has made its own stores visible to the copy engine and to
// wgmma, the warp has met, and one of them has arrived at the stage's barrier. Codes are on their way, and are widened, before
// wait_for_previous(): nothing but W is read for it, nothing written but shared memory.
//
// Blocks take codes of W, little more than half a byte each, so that L2 gives them little beside tokens; to shared memory a
// widened row is the same as one that the copy engine would bring. Design after the converting warps of CUTLASS 3's products
// of mixed types; the order of codes is Marlin's (marlin_layout.py).
#ifndef STAGES
#define STAGES 3
#endif
#ifndef CODE_STAGES
#define CODE_STAGES 2
#endif
#ifndef HELPERS
#define HELPERS 1
#endif
#ifndef ROOM
#define ROOM 2048
#endif
#ifndef PAIR
#define PAIR 2
#endif
#define WARPS (4 * (GROUPS + HELPERS))
#define CLUSTER (PAIR ? 2 : 1)
#include "many_tiles.cuh"
#include "packed_many_codes.cuh"

constexpr int TILES = ROWS / TILE_ROWS, WIDENERS = 4 * HELPERS - 1;  // warps that widen
constexpr int MOST_TILES = (TILES + WIDENERS - 1) / WIDENERS;        // of one of them
constexpr int CODE_STAGE_BYTES = TILES * TILE_BYTES;
constexpr int HELPING = 40;  // registers
static_assert(PAIR != SAME_ROWS, "each block widens rows of its own");

// A block's shared memory, by address.
struct Shared {
    u32 ring, rooms, codes;
    u32 full, empty;  // barriers of a stage
    u32 here;         // of a warp that widens and a stage of codes: its copies are here
    DEVICE Shared(u32 start) : ring((start + 1023) & ~1023u) {
        rooms = ring + STAGES * STAGE_BYTES, codes = rooms + 4 * GROUPS * ROOM;
        full = codes + CODE_STAGES * CODE_STAGE_BYTES, empty = full + 8 * STAGES, here = empty + 8 * STAGES;
    }
};

DEVICE void copy_tokens(const Work& work, const Shared& shared, const TensorMap& x) {
    Slot<STAGES> slot;
    wait_for_previous();
#pragma unroll 1
    for (int item = blockIdx.x / CLUSTER; item < work.items; item += gridDim.x / CLUSTER) {
        const Turn turn(work, item);
#pragma unroll 1
        for (int step = 0; step < work.steps; step++, slot.next()) {
            const u32 to = shared.ring + slot.at * STAGE_BYTES, full = shared.full + slot.at * 8;
            barrier_wait(shared.empty + slot.at * 8, slot.phase ^ 1);
            barrier_expect(full, X_BYTES);  // the other block's half is among them
            bring<PAIR == SAME_TOKENS>(to, x, step * COLUMNS, turn.token, TOKENS, full);
        }
    }
    // Nobody sends to this block any more, or is told that it has left a stage here, once every stage is left.
    for (int s = 0; s < STAGES; s++, slot.next()) barrier_wait(shared.empty + slot.at * 8, slot.phase ^ 1);
}

// The codes of one warp, of which each lane brings one tile. `next`: the turn that is brought next, and its unit of columns.
struct Codes {
    const Work& work;
    const u8 *packed, *from = nullptr;
    int units, last;  // of the whole matrix: units across, and its last tile
    int warp, item, unit = 0;
    DEVICE Codes(const Work& work, const u8* packed, int n, int k, int warp)
        : work(work), packed(packed), units((k + TILE_COLUMNS - 1) / TILE_COLUMNS), last(n / TILE_ROWS - 1), warp(warp),
          item(blockIdx.x / CLUSTER) {}
    // What comes next, if anything does, to stage `at`, which the whole warp has left. Where W has no more rows, its last.
    DEVICE void bring(const Shared& shared, int at) {
        const int lane = threadIdx.x % 32, tile = warp + lane * WIDENERS;
        const u32 here = shared.here + (warp * CODE_STAGES + at) * 8;
        if (item >= work.items) return;
        if (unit == 0) {
            const int row = min(Turn(work, item).row / TILE_ROWS + tile, last);
            from = packed + i64(row / UNIT_TILES) * units * UNIT_BYTES + row % UNIT_TILES * TILE_BYTES;
        }
        if (lane == 0) barrier_expect(here, (TILES - warp + WIDENERS - 1) / WIDENERS * TILE_BYTES);
        if (tile < TILES) copy_bytes(shared.codes + at * CODE_STAGE_BYTES + tile * TILE_BYTES, from, TILE_BYTES, here);
        from += UNIT_BYTES;
        if (++unit == units) unit = 0, item += gridDim.x / CLUSTER;
    }
};

// For a whole warp. `memory` is where shared.codes points.
DEVICE void widen_tiles(const Work& work, const Shared& shared, const u8* memory, Codes codes) {
    Slot<STAGES> slot;
    Slot<CODE_STAGES> held;
    for (int s = 0; s < CODE_STAGES; s++) codes.bring(shared, s);
#pragma unroll 1
    for (int item = blockIdx.x / CLUSTER; item < work.items; item += gridDim.x / CLUSTER) {
#pragma unroll 1
        for (int step = 0; step < work.steps; step++, slot.next()) {
            const int half = step % 2;
            if (half == 0) barrier_wait(shared.here + (codes.warp * CODE_STAGES + held.at) * 8, held.phase);
            const u8* tiles = memory + held.at * CODE_STAGE_BYTES;
            const u32 rows = shared.ring + slot.at * STAGE_BYTES + X_BYTES;
            auto read = [&](int i) {  // where there is no tile more, the warp's first again: it knows only of its own
                const int tile = codes.warp + i * WIDENERS;
                return Narrow(tiles + (tile < TILES ? tile : codes.warp) * TILE_BYTES, half);
            };
            Narrow next = read(0);
            barrier_wait(shared.empty + slot.at * 8, slot.phase ^ 1);
#pragma unroll
            for (int i = 0; i < MOST_TILES; i++) {
                const Narrow narrow = next;
                const int tile = codes.warp + i * WIDENERS;
                if (i < MOST_TILES - 1) next = read(i + 1);
                if (tile < TILES) widen_half(narrow, rows + tile * TILE_ROWS * 128);
            }
            stores_ready();
            __syncwarp();
            if (threadIdx.x % 32 == 0) barrier_arrive(shared.full + slot.at * 8);
            if (half == 1 || step == work.steps - 1) codes.bring(shared, held.at), held.next();
        }
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WARPS * 32, 1) packed_many(
    const u8* packed,
    const __grid_constant__ TensorMap x,    // (M, K), boxes of the tokens that a block brings
    const __grid_constant__ TensorMap out,  // what is left of (M, N), boxes of 16 tokens and WIDTH columns
    float alpha,
    const float* bias,  // (N,) or null
    int m, int n, int k,
    int band) {  // of tokens: tiles of a cluster
    extern __shared__ __align__(16) u8 memory[];
    const Shared shared(shared_address(memory));
    u8* ring = memory + (shared.ring - shared_address(memory));
    const Work work(m, n, k, band);
    allow_next();
    if (threadIdx.x == MULTIPLIERS) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(shared.full + s * 8, 1 + WIDENERS);
            barrier_init(shared.empty + s * 8, GROUPS * CLUSTER);
        }
        for (int i = 0; i < WIDENERS * CODE_STAGES; i++) barrier_init(shared.here + i * 8, 1);
        barriers_ready();
        prefetch_map(x);
        prefetch_map(out);
    }
    __syncthreads();
    if constexpr (CLUSTER > 1) cluster_begin(), cluster_begun();
    if (threadIdx.x >= MULTIPLIERS) {
        leave_registers<HELPING>();
        const int warp = __shfl_sync(FULL, threadIdx.x / 32, 0) - 4 * GROUPS - 1;  // as the compiler can see, of all lanes
        if (warp >= 0) widen_tiles(work, shared, ring + (shared.codes - shared.ring), Codes(work, packed, n, k, warp));
        else if (threadIdx.x == MULTIPLIERS) copy_tokens(work, shared, x);
    } else {
        take_registers<multiplying_registers(HELPERS, HELPING)>();
        const int group = own_group();
        Writer writer(out, alpha, bias, m, n, ring + (shared.rooms - shared.ring) + threadIdx.x / 32 * ROOM);
        wait_for_previous();
        multiply_tiles(work, Ring{shared.ring, shared.full, shared.empty, group}, writer);
    }
}
