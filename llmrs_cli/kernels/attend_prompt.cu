// Paged causal attention of sequences with many queries on Hopper: the copy engine brings pages, wgmma multiplies them.
//
// A row is a query of one query head. The query heads of a key head stand together, query by query, so that a block of
// ROWS = 64 · WGS rows reads each key once for all of them, and few of its keys are masked. Each of WGS warpgroups has 64
// rows and walks the pages that any row of the block sees, oldest first, KEYS a step, with a running maximum (online
// softmax). Of one more warpgroup a warp brings keys and values through a ring, and finds the next item while the others
// are at work; its other warps bring that item's queries.
// A warpgroup's scores of the next step are under way while the values of this one are multiplied, and one warpgroup's
// exponentials run beside another's products: they take turns at the tensor cores.
//
// The grid fills the GPU once. Items of ROWS rows are drawn from a counter, which the last draw leaves at 0. WGS tiles of
// queries make as many items as a key head has query heads; each tile has its share of them. Tiles are numbered backwards so
// that the longest (latest) ones start first. Steps lie on multiples of KEYS, and keys that a row does not see add exact
// zeros: its bits depend on nothing but its own context.
// Design after FlashAttention-3 (Shah et al., 2024).
#ifndef WGS
#define WGS 2
#endif
#ifndef KEYS
#define KEYS 128
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef TURNS
#define TURNS 1
#endif
#include "attention.cuh"
#include "tensor_copy.cuh"
#include "warpgroups.cuh"
#include "wgmma_prompt.cuh"

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

// Where the next step stands in the ring.
struct Slot {
    int at = 0;
    u32 phase = 0;
    DEVICE void next() {
        if (++at == STAGES) at = 0, phase ^= 1;
    }
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
    const Source& source, Slot& slot, u32& tails) {
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
    Slot slot;
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

// ---- the multiplying warpgroups ---------------------------------------------------------------------------

// Rounded to nearest even, of 0 … 1.
DEVICE u32 pack_probabilities(float low, float high) {
    u32 pair;
#if BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

// A warpgroup's thread: which one it is, and what it holds of an item.
struct Rows {
    int warpgroup, warp, lane, g, c;
    int at[2];        // positions of its rows
    int first, last;  // positions of the first and last row of its warp
    DEVICE Rows()
        : warpgroup(__shfl_sync(FULL, threadIdx.x / 128, 0)),  // the same for all lanes, as the compiler can see
          warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32), g(lane / 4), c(lane % 4) {}
    DEVICE void take(const Item& item, const Group& group) {
        const int row = item.row + warpgroup * 64 + warp * 16;
        auto position = [&](int r) { return item.before + group.query(min(r, item.rows - 1)); };
        at[0] = position(row + g), at[1] = position(row + g + 8);
        first = position(row), last = position(row + 15);
    }
    DEVICE void meet() const { meeting_wait(MEETING + warpgroup, 128); }
    DEVICE void release(u32 barrier) const {
        if (threadIdx.x % 128 == 0) barrier_arrive(barrier);
    }
    DEVICE void wait_turn() const {
        if (TURNS) meeting_wait(TURN + warpgroup, 256);
    }
    DEVICE void pass_turn() const {
        if (TURNS) meeting_arrive(TURN + (warpgroup + 1) % WGS, 256);
    }
};

typedef float Scores[KEYS / 8][4];
typedef float Sums[HEAD_DIM / 8][4];
typedef u32 Probabilities[KEYS / 16][4];

// `queries` and `keys` are descriptors of the first columns; what is added is 16 bytes each.
DEVICE void multiply_keys(Scores& score, u64 queries, u64 keys) {
#pragma unroll
    for (int j = 0; j < STEPS; j++)
        wgmma_scores(
            score, queries + (j / 4 * QUERY_STRIPE + j % 4 * 32) / 16, keys + (j / 4 * STRIPE_BYTES + j % 4 * 32) / 16, j > 0);
    wgmma_end();
}

// `values`: the descriptor of the first keys.
DEVICE void multiply_values(Sums& sum, const Probabilities& p, u64 values) {
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) wgmma_values(sum, p[n], values + n * 16 * 128 / 16);
    wgmma_end();
}

// Scores of a step become probabilities against the running maximum `top`; `shrink` is what sums before it are worth.
DEVICE void soften(
    Scores& score, const Rows& rows, int key0, float scale, int window, float (&top)[2], float (&mass)[2],
    float (&shrink)[2]) {
    if (key0 + KEYS > rows.first + 1 || (window > 0 && key0 <= rows.last - window)) {
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = key0 + n * 8 + rows.c * 2 + i % 2, at = rows.at[i / 2];
                if (key > at || (window > 0 && key <= at - window)) score[n][i] = NEVER;
            }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float peak = NEVER;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) peak = fmaxf(peak, fmaxf(score[n][r * 2], score[n][r * 2 + 1]));
        peak = fmaxf(peak, __shfl_xor_sync(FULL, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(FULL, peak, 2));
        // While a row has seen no key its top stays NEVER; 0 then keeps its scores far below.
        peak = fmaxf(top[r], peak * scale);
        const float base = peak > 0.5f * NEVER * scale ? peak : 0.0f;
        shrink[r] = exp2_fast(top[r] - base);
        top[r] = peak;
        mass[r] *= shrink[r];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            float(&pair)[4] = score[n];
            pair[r * 2] = exp2_fast(pair[r * 2] * scale - base);
            pair[r * 2 + 1] = exp2_fast(pair[r * 2 + 1] * scale - base);
            mass[r] += pair[r * 2] + pair[r * 2 + 1];
        }
    }
}

// Sums against an older top; that of 16 rows is the same still where contexts are long.
DEVICE void rescale(Sums& sum, const float (&shrink)[2]) {
    if (!__any_sync(FULL, shrink[0] != 1.0f || shrink[1] != 1.0f)) return;
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[j][i] *= shrink[i / 2];
}

DEVICE void pack(Probabilities& p, const Scores& score) {
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[n][i] = pack_probabilities(score[2 * n + i / 2][i % 2 * 2], score[2 * n + i / 2][i % 2 * 2 + 1]);
}

DEVICE void store(
    const Arguments& a, const Item& item, const Rows& rows, const Group& group, const Sums& sum, const float (&mass)[2],
    u8* results) {
    rows.meet();  // nobody multiplies the queries any more
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float whole = mass[r];
        whole += __shfl_xor_sync(FULL, whole, 1);
        whole += __shfl_xor_sync(FULL, whole, 2);
        const float inverse = 1.0f / whole;
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 8; j++)
            *reinterpret_cast<u32*>(results + chunk_at(rows.warp * 16 + rows.g + r * 8, j) + rows.c * 4) =
                pack2(sum[j][r * 2] * inverse, sum[j][r * 2 + 1] * inverse);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CHUNKS / 2; i++) {
        const int chunk = i * 32 + rows.lane, own = rows.warp * 16 + chunk / CHUNKS;
        const int row = item.row + rows.warpgroup * 64 + own;
        if (row < item.rows)
            *reinterpret_cast<uint4*>(a.out + row_at(a, item, group, row) + chunk % CHUNKS * 8) =
                *reinterpret_cast<const uint4*>(results + chunk_at(own, chunk % CHUNKS));
    }
}

DEVICE void attend_items(const Arguments& a, const Room& room) {
    const Group group(a);
    Rows rows;
    Slot keys, values;
    if (rows.warpgroup == WGS - 1) rows.pass_turn();  // to the first
#pragma unroll 1
    for (int n = 0;; n++) {
        const Item item = take_item(room, n);
        if (item.rows == 0) return;
        rows.take(item, group);
        u8* own = room.queries(n, rows.warpgroup);
        const u64 queries = wgmma_operand(shared_address(own), 0);

        Scores score;
        Probabilities p;
        Sums sum = {};
        float top[2] = {NEVER, NEVER}, mass[2] = {}, shrink[2];
        barrier_wait(room.full_queries(n), n / 2 % 2);
        barrier_wait(room.full_keys(keys.at), keys.phase);
        wgmma_begin();
        multiply_keys(score, queries, wgmma_operand(shared_address(room.keys(keys.at)), 0));
        wgmma_wait<0>();
        wgmma_results(score);
        rows.release(room.empty_keys(keys.at));
        keys.next();
        soften(score, rows, item.step * KEYS, a.scale, a.window, top, mass, shrink);
        pack(p, score);
        if (item.step + 1 < item.past) barrier_wait(room.full_keys(keys.at), keys.phase);
#pragma unroll 1
        for (int step = item.step + 1; step < item.past; step++, values.next()) {
            rows.wait_turn();
            wgmma_begin();
            multiply_keys(score, queries, wgmma_operand(shared_address(room.keys(keys.at)), 0));
            barrier_wait(room.full_values(values.at), values.phase);
            multiply_values(sum, p, wgmma_columns(shared_address(room.values(values.at))));
            rows.pass_turn();
            wgmma_wait<1>();
            wgmma_results(score);
            rows.release(room.empty_keys(keys.at));
            keys.next();
            soften(score, rows, step * KEYS, a.scale, a.window, top, mass, shrink);
            wgmma_results(score);
            // Here, since the assembler would move the exponentials behind the wait that follows but for a branch between.
            if (step + 1 < item.past) barrier_wait(room.full_keys(keys.at), keys.phase);
            wgmma_wait<0>();
            wgmma_results(sum);
            rows.release(room.empty_values(values.at));
            rescale(sum, shrink);
            pack(p, score);
        }
        barrier_wait(room.full_values(values.at), values.phase);
        wgmma_begin();
        multiply_values(sum, p, wgmma_columns(shared_address(room.values(values.at))));
        wgmma_wait<0>();
        wgmma_results(sum);
        rows.release(room.empty_values(values.at));
        values.next();
        store(a, item, rows, group, sum, mass, own);
        barrier_arrive(room.empty_queries(n));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_prompt(
    const __grid_constant__ TensorMap keys,    // (NB · Hkv · 64, D), boxes of a page
    const __grid_constant__ TensorMap values,  // the same
    const HALF* q,           // (T, Hq, D)
    const int* tables,       // (rows, MB) pages of each row
    const int* rows,         // (S,) row of each sequence
    const int* contexts,     // (S,) tokens, this step's included
    const int* query_start,  // (S + 1,)
    const int* first_tile,   // (S + 1,) tiles of TILE queries of the prompts before each one
    HALF* out,               // (T, Hq · D)
    int* drawn,              // (1,) 0, and again at the end
    float scale,             // on q · k, times log2 e
    int sequences, int table_width, int heads, int kv_heads, int window) {
    extern __shared__ __align__(16) u8 shared[];  // queries, and stages of keys and values
    __shared__ __align__(16) Item items[2];
    __shared__ __align__(8) u64 barriers[BARRIERS];
    u8* begin = shared + ((1024 - shared_address(shared) % 1024) & 1023);
    const Room room{begin, items, shared_address(barriers)};
    const Arguments a{q, tables, rows, contexts, query_start, first_tile, out, drawn, scale, sequences, table_width,
                      heads, kv_heads, window};
    if (threadIdx.x == MULTIPLIERS) {
        room.prepare();
        prefetch_map(keys);
        prefetch_map(values);
    }
    __syncthreads();
    // In this order: decode attention that runs beside this kernel counts on all before it being complete.
    wait_for_previous();
    allow_next();
    if (threadIdx.x >= MULTIPLIERS) {
        leave_registers<COPYING>();
        if (threadIdx.x < MULTIPLIERS + 32)
            copy_items(a, room, keys, values);
        else
            bring_queries(a, room);
    } else {
        take_registers<REGISTERS>();
        attend_items(a, room);
    }
}
