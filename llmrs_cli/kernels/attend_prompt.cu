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
#include "prompt_items.cuh"
#include "wgmma_prompt.cuh"

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
    Slot<STAGES> keys, values;
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
