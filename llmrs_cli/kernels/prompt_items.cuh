// What attend_prompt works on and how it comes: items of rows, shared memory and its barriers, and the warpgroup that copies.
//
// One warp finds the next item and brings its keys and values through a ring; the others bring its queries.
#pragma once
#include "attention.cuh"
#include "tensor_copy.cuh"
#include "warpgroups.cuh"
#include "wgmma.cuh"

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "heads are whole stripes");
static_assert(WGS == 2 || (WGS == 3 && KEYS == 64), "more scores than a third of the registers holds");
constexpr int TILE = 64;  // queries that the step's tiles are counted in
constexpr int ROWS = 64 * WGS, THREADS = 128 * (WGS + 1), MULTIPLIERS = 128 * WGS;
constexpr int STRIPES = HEAD_DIM / 64, CHUNKS = HEAD_DIM / 8;  // 16-byte chunks of a row
constexpr int QUERY_STRIPE = 64 * 128, QUERY_BYTES = STRIPES * QUERY_STRIPE;  // of a warpgroup
constexpr int STRIPE_BYTES = KEYS * 128, STEP_BYTES = STRIPES * STRIPE_BYTES;  // of a step's keys or values
constexpr int PAGES = KEYS / PAGE;  // of a step
constexpr int REGISTERS = WGS == 2 ? 224 : 152, COPYING = 56;  // all that a thread of each has at launch, shared out
constexpr int QUERYING = 96;  // threads that bring queries
constexpr int MEETING = 1, TURN = MEETING + WGS;  // meetings of each warpgroup by itself, and its turns

struct Arguments {
    const HALF* q;
    const int *tables, *rows, *contexts, *query_start, *first_tile;
    HALF* out;
    int* drawn;
    float scale;
    int sequences, table_width, heads, kv_heads, window;
};

// Query heads of a key head, and rows over them without a division. `share`: items of a tile.
struct Group {
    int size, share;
    u32 inverse;
    DEVICE explicit Group(const Arguments& a)
        : size(a.heads / a.kv_heads), share((size + WGS - 1) / WGS), inverse(size > 1 ? 0xffffffffu / size + 1 : 0) {}
    DEVICE int query(int row) const { return size > 1 ? int(__umulhi(row, inverse)) : row; }
};

// Some rows of one sequence and key head, and the steps that they walk. No rows: there is nothing left to do.
struct Item {
    int token, row, rows, before, kv_head, step, past;  // `row` of `rows`, which belong to the tokens from `token` on
};

// Shared memory of a block, and its barriers.
struct Room {
    u8* bytes;
    Item* items;  // two, with their queries
    u32 barriers;
    DEVICE u32 full_keys(int at) const { return barriers + at * 8; }
    DEVICE u32 full_values(int at) const { return barriers + (STAGES + at) * 8; }
    DEVICE u32 empty_keys(int at) const { return barriers + (2 * STAGES + at) * 8; }
    DEVICE u32 empty_values(int at) const { return barriers + (3 * STAGES + at) * 8; }
    DEVICE u32 full_item(int n) const { return barriers + (4 * STAGES + n % 2) * 8; }
    DEVICE u32 empty_item(int n) const { return barriers + (4 * STAGES + 2 + n % 2) * 8; }
    DEVICE u32 full_queries(int n) const { return barriers + (4 * STAGES + 4 + n % 2) * 8; }
    DEVICE u32 empty_queries(int n) const { return barriers + (4 * STAGES + 6 + n % 2) * 8; }
    DEVICE u32 landed() const { return barriers + (4 * STAGES + 8) * 8; }
    DEVICE u8* queries(int n, int warpgroup) const { return bytes + (n % 2 * WGS + warpgroup) * QUERY_BYTES; }
    DEVICE u8* keys(int at) const { return bytes + 2 * WGS * QUERY_BYTES + at * 2 * STEP_BYTES; }
    DEVICE u8* values(int at) const { return keys(at) + STEP_BYTES; }
    DEVICE void prepare() const {
        for (int at = 0; at < STAGES; at++) {
            barrier_init(full_keys(at), 1), barrier_init(full_values(at), 1);
            barrier_init(empty_keys(at), WGS), barrier_init(empty_values(at), WGS);
        }
        for (int n = 0; n < 2; n++) {
            barrier_init(full_item(n), 1), barrier_init(empty_item(n), MULTIPLIERS + QUERYING);
            barrier_init(full_queries(n), QUERYING), barrier_init(empty_queries(n), MULTIPLIERS);
        }
        barrier_init(landed(), 1);
        barriers_ready();
    }
};
constexpr int BARRIERS = 4 * STAGES + 9;

// ---- the copying warp ------------------------------------------------------------------------------------

// What the copies of an item need beside the item.
struct Source {
    const int* table;
    int pages, context;
};

// Whether the item has rows; all lanes find the same.
DEVICE bool find(const Arguments& a, const Group& group, int item, Item& found, Source& source) {
    const int of_tile = a.kv_heads * group.share, own = item % of_tile, tile = a.first_tile[a.sequences] - 1 - item / of_tile;
    const int lane = threadIdx.x % 32;
    int sequence = 0;
#pragma unroll 4
    for (int s = lane; s - lane < a.sequences; s += 32)
        sequence += __popc(__ballot_sync(FULL, s < a.sequences && a.first_tile[s + 1] <= tile));
    const int own_tile = tile - a.first_tile[sequence], part = own_tile % WGS * group.share + own % group.share;
    if (part >= group.size) return false;
    const int start = a.query_start[sequence], count = a.query_start[sequence + 1] - start;
    const int context = a.contexts[sequence], before = context - count;
    found.token = start, found.rows = count * group.size, found.before = before, found.kv_head = own / group.share;
    found.row = own_tile / WGS * ROWS * group.size + part * ROWS;
    if (found.row >= found.rows) return false;
    const int last = min(found.row + ROWS, found.rows) - 1, seen = before + group.query(last) + 1;
    found.step = a.window > 0 ? max(before + group.query(found.row) - a.window + 1, 0) / KEYS : 0;
    found.past = (seen + KEYS - 1) / KEYS;
    source.table = a.tables + i64(a.rows[sequence]) * a.table_width;
    source.pages = (seen + PAGE - 1) / PAGE, source.context = context;
    return true;
}

// The next item after one is done.
DEVICE int draw(const Arguments& a, int items) {
    int drawn = 0;
    if (threadIdx.x % 32 == 0) {
        drawn = atomicAdd(a.drawn, 1);
        if (drawn == items - 1) *a.drawn = 0;  // there are as many draws as items
    }
    return int(gridDim.x) + __shfl_sync(FULL, drawn, 0);
}

DEVICE void copy_step(u32 to, const TensorMap& map, const int (&rows)[PAGES], u32 barrier) {
    barrier_expect(barrier, STEP_BYTES);
#pragma unroll
    for (int b = 0; b < PAGES; b++)
#pragma unroll
        for (int stripe = 0; stripe < STRIPES; stripe++)
            copy_box(to + stripe * STRIPE_BYTES + b * PAGE * 128, map, stripe * 64, rows[b], barrier);
}

// Keys and values of an item. `tails` counts the pages whose end has been cleared.
DEVICE void copy_item(
    const Arguments& a, const Room& room, const TensorMap& keys, const TensorMap& values, const Item& item,
    const Source& source, Slot<STAGES>& slot, u32& tails) {
    const int lane = threadIdx.x % 32;
    // Rows beyond the context hold what may be NaN, which a probability of 0 does not hide: they are cleared.
    const bool tail = source.pages * PAGE > source.context;
    int held = -1, last = 0;  // pages of the table, one a lane; -1: none, and the copy brings zeros
#pragma unroll 1
    for (int step = item.step; step < item.past; step++, slot.next()) {
        const int turn = (step - item.step) * PAGES % 32, page = step * PAGES + lane;
        if (turn == 0) held = page < source.pages ? source.table[page] : -1;
        int rows[PAGES];
#pragma unroll
        for (int b = 0; b < PAGES; b++)
            rows[b] = (__shfl_sync(FULL, held, turn + b) * a.kv_heads + item.kv_head) * PAGE;
        last = slot.at;
        if (lane == 0) {
            barrier_wait(room.empty_keys(slot.at), slot.phase ^ 1);
            copy_step(shared_address(room.keys(slot.at)), keys, rows, room.full_keys(slot.at));
            barrier_wait(room.empty_values(slot.at), slot.phase ^ 1);
            const bool clears = tail && step + 1 == item.past;
            copy_step(
                shared_address(room.values(slot.at)), values, rows, clears ? room.landed() : room.full_values(slot.at));
        }
        __syncwarp();
    }
    if (!tail) return;
    barrier_wait(room.landed(), tails++ % 2);
    const int page = (source.pages - 1) % PAGES, inside = source.context - (source.pages - 1) * PAGE;
    for (int stripe = 0; stripe < STRIPES; stripe++) {
        uint4* to = reinterpret_cast<uint4*>(room.values(last) + stripe * STRIPE_BYTES + page * PAGE * 128);
        for (int chunk = inside * 8 + lane; chunk < PAGE * 8; chunk += 32) to[chunk] = make_uint4(0, 0, 0, 0);
    }
    fence_for_wgmma();
    __syncwarp();
    if (lane == 0) barrier_arrive(room.full_values(last));
}

DEVICE void copy_items(const Arguments& a, const Room& room, const TensorMap& keys, const TensorMap& values) {
    const Group group(a);
    const int items = a.first_tile[a.sequences] * a.kv_heads * group.share;
    int next = blockIdx.x;
    Slot<STAGES> slot;
    u32 tails = 0;
#pragma unroll 1
    for (int n = 0;; n++) {
        Item item{};
        Source source{};
        bool found = false;
        while (next < items && !(found = find(a, group, next, item, source))) next = draw(a, items);
        if (!found) item.rows = 0;
        if (threadIdx.x % 32 == 0) {  // waits alone: once it has passed, the others could miss the phase
            barrier_wait(room.empty_item(n), u32(n / 2 % 2) ^ 1);
            room.items[n % 2] = item;
            barrier_arrive(room.full_item(n));
        }
        if (!found) return;
        copy_item(a, room, keys, values, item, source, slot, tails);
        next = draw(a, items);  // no sooner, lest one block hoards what others could begin
    }
}

// ---- the warps that bring queries -------------------------------------------------------------------------

// Place of 16-byte chunk `column` of a warpgroup's row in its queries, or results.
DEVICE int chunk_at(int row, int column) {
    return column / 8 * QUERY_STRIPE + row * 128 + (column % 8 ^ row % 8) * 16;
}

// Where a row's values stand in q and out, in elements.
DEVICE i64 row_at(const Arguments& a, const Item& item, const Group& group, int row) {
    const int query = group.query(row);
    return (i64(item.token + query) * a.heads + item.kv_head * group.size + row - query * group.size) * HEAD_DIM;
}

// Item `n` of the block. Who has read it says so.
DEVICE Item take_item(const Room& room, int n) {
    barrier_wait(room.full_item(n), n / 2 % 2);
    const Item item = room.items[n % 2];
    barrier_arrive(room.empty_item(n));
    return item;
}

DEVICE void bring_queries(const Arguments& a, const Room& room) {
    const Group group(a);
#pragma unroll 1
    for (int n = 0;; n++) {
        const Item item = take_item(room, n);
        if (item.rows == 0) return;
        barrier_wait(room.empty_queries(n), u32(n / 2 % 2) ^ 1);
#pragma unroll 2
        for (int chunk = threadIdx.x - (THREADS - QUERYING); chunk < ROWS * CHUNKS; chunk += QUERYING) {
            const int own = chunk / CHUNKS, column = chunk % CHUNKS, row = item.row + own;
            const HALF* from = a.q + row_at(a, item, group, min(row, item.rows - 1)) + column * 8;
            copy_async(
                shared_address(room.queries(n, own / 64)) + chunk_at(own % 64, column), from, row < item.rows);
        }
        copy_commit();
        copy_wait<0>();
        fence_for_wgmma();
        barrier_arrive(room.full_queries(n));
    }
}
