// The four products between two attentions in one launch on Hopper: o, gate and up, down and the next layer's qkv.
//
// A kernel for each leaves memory idle where one ends and the next begins: sums meet, results are written, tokens arrive,
// and only then is there room for weights. Here one warp copies the weights of all four and never stops: they depend on
// nothing, so that the ring is full when the tokens of the next product come. A second warp copies tokens, into a ring of
// their own, once they have been written: between products blocks meet in memory (grid_barrier.cuh), so all of the grid runs
// at once, one block a multiprocessor, and no other such grid beside it. What down reads comes turn by turn of gate and up:
// slices of its columns that early turns have written wait for nobody.
//
// Tiles are 64 · WGS tokens, which is all there are, by some rows of W, 64 columns a step. A warpgroup has 64 tokens and all
// rows. Columns of o, down and qkv are shared out among the SLICES blocks of a cluster, which has one tile at most: their
// sums are sent to where they are added up, in the order of the slices, beside the ring, which goes on. Of gate and up each
// block has tiles of its own, in turns. Norms between products are linear_wide's: x' = residual · the norm's weights in
// 16 bits, the squares by block, and 1 / rms on the sums of the product that follows.
#ifndef WGS
#define WGS 1
#endif
#ifndef SLICES
#define SLICES 4
#endif
#ifndef W_STAGES
#define W_STAGES 8
#endif
#ifndef X_STAGES
#define X_STAGES 4
#endif
#ifndef ROWS
#define ROWS 160  // of a tile of gate and up: 8 gates, 8 ups and so on
#endif
#ifndef ADD_ROWS
#define ADD_ROWS 120  // of o and of down
#endif
#ifndef QKV_ROWS
#define QKV_ROWS 160
#endif
#define WARPS (4 * WGS + 4)
#define EPILOGUE SILU  // of wide_epilogue.cuh's own writer
#include "cluster_barrier.cuh"
#include "layer_epilogue.cuh"
#include "layer_products.cuh"
#include "warpgroups.cuh"
#include "wgmma_rows.cuh"

constexpr int TOKENS = 64 * WGS, MULTIPLIERS = 128 * WGS;
constexpr int CUT_ROWS = ADD_ROWS > QKV_ROWS ? ADD_ROWS : QKV_ROWS, MOST_ROWS = ROWS > CUT_ROWS ? ROWS : CUT_ROWS;
constexpr int X_BYTES = TOKENS * 128, W_BYTES = MOST_ROWS * 128;
constexpr int EIGHT_BYTES = 64 * 8 * 4;  // sums of a warpgroup and eight rows
constexpr int GROUP_BYTES = (CUT_ROWS / 8 + SLICES - 1) / SLICES * (SLICES - 1) * EIGHT_BYTES;  // from the other blocks
// What the copying warps can spare, shared out.
constexpr int COPYING = 40, LAUNCHED = 65536 / (WARPS * 32) / 8 * 8, SPARED = (LAUNCHED * (WGS + 1) - COPYING) / WGS / 8 * 8;
constexpr int REGISTERS = SPARED < 240 ? SPARED : 240;

// What a block has in shared memory, by address.
struct Shared {
    u32 weights, x, sums;
    u32 weights_full, weights_empty, x_full, x_empty;  // barriers of a stage: its copy is here; all warpgroups have read it
    u32 begun;                                         // everything that this product reads has been written
    u32 ready;                                         // of a warpgroup: the other blocks' sums are here
    DEVICE Shared(u32 start) : weights((start + 1023) & ~1023u) {
        x = weights + W_STAGES * W_BYTES, sums = x + X_STAGES * X_BYTES;
        weights_full = sums + WGS * GROUP_BYTES, weights_empty = weights_full + 8 * W_STAGES;
        x_full = weights_empty + 8 * W_STAGES, x_empty = x_full + 8 * X_STAGES;
        begun = x_empty + 8 * X_STAGES, ready = begun + 8;
    }
    DEVICE void make_barriers() const {
        for (int s = 0; s < W_STAGES; s++)
            barrier_init(weights_full + s * 8, 1), barrier_init(weights_empty + s * 8, WGS);
        for (int s = 0; s < X_STAGES; s++)
            barrier_init(x_full + s * 8, 1), barrier_init(x_empty + s * 8, WGS);
        barrier_init(begun, 1);
        for (int i = 0; i < WGS; i++) barrier_init(ready + i * 8, 1);
        barriers_ready();
    }
};

// For one thread. Weights wait for nothing but room.
DEVICE void copy_weights(const Layer& layer, const Shared& shared) {
    Slot<W_STAGES> slot;
    layer.each_product([&](const auto& product, int) {
        product.each_tile([&](int row, int first, int past) {
#pragma unroll 1
            for (int step = first; step < past; step++, slot.next()) {
                const u32 full = shared.weights_full + slot.at * 8;
                barrier_wait(shared.weights_empty + slot.at * 8, slot.phase ^ 1);
                barrier_expect(full, product.EIGHTS * 1024);
                copy_box(shared.weights + slot.at * W_BYTES, product.weights, step * COLUMNS, row, full);
            }
        });
    });
}
// For one thread. fetched: tokens of a step.
DEVICE void copy_tokens(const Layer& layer, const Shared& shared, const u32* meeting, int fetched) {
    Slot<X_STAGES> slot;
    layer.each_product([&](const auto& product, int before) {
        wait_for_tokens(layer, meeting, before);
        barrier_arrive(shared.begun);
        product.each_tile([&](int, int first, int past) {
#pragma unroll 1
            for (int step = first; step < past; step++, slot.next()) {
                const u32 full = shared.x_full + slot.at * 8;
                barrier_wait(shared.x_empty + slot.at * 8, slot.phase ^ 1);
                barrier_expect(full, fetched * 128);
                copy_box(shared.x + slot.at * X_BYTES, product.x, step * COLUMNS, 0, full);
            }
        });
    });
}

// A thread's place in the rings, and how often its sums have met others.
struct Place {
    Slot<W_STAGES> weights;
    Slot<X_STAGES> x;
    u32 met = 0;
};

// d: of tokens g and g + 8 of a warp's 16, and of rows 8j + 2c and the next.
template <int EIGHTS> DEVICE void multiply(const Shared& shared, int first, int past, Place& at, float (&d)[EIGHTS][4]) {
    int weights_before = -1, x_before = -1;
    // Sums without a value would take registers from the kernel's first instruction on, those of all four products at once.
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) d[j][0] = d[j][1] = d[j][2] = d[j][3] = 0.0f;
    auto release = [&] {  // all threads of the warpgroup are done with a step
        if (threadIdx.x % 128 == 0) {
            barrier_arrive(shared.weights_empty + weights_before * 8);
            barrier_arrive(shared.x_empty + x_before * 8);
        }
    };
#pragma unroll 1
    for (int step = first; step < past; step++, at.weights.next(), at.x.next()) {
        const u64 w = wgmma_operand(shared.weights + uniform(at.weights.at) * W_BYTES, 0);
        const u64 x = wgmma_operand(shared.x + uniform(at.x.at) * X_BYTES + own_group() * 64 * 128, 0);
        barrier_wait(shared.weights_full + at.weights.at * 8, at.weights.phase);
        barrier_wait(shared.x_full + at.x.at * 8, at.x.phase);
        wgmma_begin(d);
#pragma unroll
        for (int i = 0; i < COLUMNS / 16; i++)
            wgmma(d, further(x, i * 32), further(w, i * 32), 1);
        wgmma_end();
        if (step > first) {  // the step before is done
            wgmma_wait<1>(d);
            release();
        }
        weights_before = at.weights.at, x_before = at.x.at;
    }
    wgmma_wait<0>(d);
    release();
}

// The sums of all slices of a tile meet: those of the n-th eight rows are sent to block n % SLICES, which adds them up in the
// order of the slices and writes. What was sent there before has been read: its block has been waited for since.
template <Epilogue THEN, int EIGHTS>
DEVICE void meet(const Shared& shared, const u8* sent, EightWriter<THEN>& writer, int row, u32 phase,
                 const float (&d)[EIGHTS][4]) {
    constexpr int SHARE = (EIGHTS + SLICES - 1) / SLICES;
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, slice = blockIdx.x % SLICES;
    const int share = (EIGHTS - slice + SLICES - 1) / SLICES, column = row + threadIdx.x % 4 * 2;
    const u32 ready = shared.ready + group * 8, own = group * GROUP_BYTES + thread * 16;
    if (thread == 0) barrier_expect(ready, share * (SLICES - 1) * EIGHT_BYTES);
#pragma unroll
    for (int to = 0; to < SLICES; to++) {
        if (to == slice) continue;
        const u32 there = cluster_address(shared.sums + own + (slice - (slice > to)) * EIGHT_BYTES, to);
        const u32 ready_there = cluster_address(ready, to);
#pragma unroll
        for (int n = to; n < EIGHTS; n += SLICES)
            store_there(there + n / SLICES * (SLICES - 1) * EIGHT_BYTES,
                        make_float4(d[n][0], d[n][1], d[n][2], d[n][3]), ready_there);
    }
    BeforeEight before[SHARE];
#pragma unroll
    for (int i = 0; i < SHARE; i++) before[i] = writer.load(column + (i * SLICES + slice) * 8);
    barrier_wait_for_cluster(ready, phase);
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        float4 mine, sum;
#pragma unroll
        for (int s = 0; s < SLICES; s++) {
            const int n = min(i * SLICES + s, EIGHTS - 1);
            if (s == slice) mine = make_float4(d[n][0], d[n][1], d[n][2], d[n][3]);
        }
#pragma unroll
        for (int s = 0; s < SLICES; s++) {
            float4 part = mine;
            if (s != slice && i < share)
                part = *reinterpret_cast<const float4*>(sent + own + (i * (SLICES - 1) + s - (s > slice)) * EIGHT_BYTES);
            if (s == 0) sum = part;
            else sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
        const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
        if (i < share) writer.write(before[i], column + (i * SLICES + slice) * 8, sums);
    }
}

// A thread's first token.
DEVICE int own_token() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }

// All multiplying threads have written: `arrived` counts their block. For the first of them, how many have been before it.
DEVICE u32 written(u32* arrived) {
    fence_for_copies();
    meeting_wait(1, MULTIPLIERS);
    return threadIdx.x == 0 ? grid_arrive(arrived) : 0;
}

template <int EIGHTS, Epilogue THEN>
DEVICE void run(const Linear<EIGHTS, SLICES, THEN>& product, const Layer& layer, const Shared& shared, const u8* sent,
                u32* meeting, Place& at) {
    product.each_tile([&](int row, int first, int past) {
        EightWriter<THEN> writer(product.p, product.norms, own_token());
        float d[EIGHTS][4];
        multiply(shared, first, past, at, d);
        meet(shared, sent, writer, row, at.met++ & 1, d);
        writer.leave(row / (EIGHTS * 8) * SLICES + blockIdx.x % SLICES);
    });
    const u32 before = written(meeting);
    if (threadIdx.x == 0 && before + 1 == layer.arrivals())  // the last block to leave clears all for the next launch
        for (int i = 0; i <= layer.turns(); i++) meeting[i] = 0;
}
DEVICE void run(const Linear<ROWS / 8, 1, SILU>& product, const Layer&, const Shared& shared, const u8*, u32* meeting,
                Place& at) {
    Writer writer(product.p, product.norms, own_token());
    product.each_tile([&](int row, int first, int past) {
        float d[ROWS / 8][4];
        multiply(shared, first, past, at, d);
#pragma unroll
        for (int u = 0; u < ROWS / 16; u++) {
            const float(&g)[4] = d[2 * u], (&r)[4] = d[2 * u + 1];
            const float2 sums[2][2] = {{make_float2(g[0], g[1]), make_float2(g[2], g[3])},
                                       {make_float2(r[0], r[1]), make_float2(r[2], r[3])}};
            const int column = row + u * 16 + threadIdx.x % 4 * 2;
            Before before;
            before.load(product.p, product.norms, column);
            writer.write(before, column, sums);
        }
        written(meeting + 1 + row / (ROWS * gridDim.x));
    });
}

DEVICE void multiply_all(const Layer& layer, const Shared& shared, const u8* sent, u32* meeting) {
    Place at;
    wait_for_previous();
    layer.each_product([&](const auto& product, int before) {
        barrier_wait(shared.begun, before & 1);
        run(product, layer, shared, sent, meeting, at);
    });
}

extern "C" __global__ void __cluster_dims__(SLICES, 1, 1) __launch_bounds__(WARPS * 32, 1) layer_wide(
    const __grid_constant__ TensorMap o_weight,        // (C, H), boxes of ADD_ROWS
    const __grid_constant__ TensorMap mixed,           // (M, H), boxes of `fetched`
    const __grid_constant__ TensorMap gate_up_weight,  // (2F, C), boxes of ROWS
    const __grid_constant__ TensorMap x_mlp,           // what `values_mlp` is, boxes of `fetched`
    const __grid_constant__ TensorMap down_weight,     // (C, F), boxes of ADD_ROWS
    const __grid_constant__ TensorMap x_down,          // what `activated` is, likewise
    const __grid_constant__ TensorMap qkv_weight,      // (Q, C), boxes of QKV_ROWS
    const __grid_constant__ TensorMap x_next,          // what `values_next` is, likewise
    float* residual,                                   // (M, C)
    const float* norm_mlp,                             // (C,)
    HALF* values_mlp,                                  // (M, C): residual · norm_mlp after o
    float* squares_mlp,                                // (M, stride_mlp)
    int stride_mlp,
    const float* gate_up_bias,                         // (2F,) or null
    HALF* activated,                                   // (M, F)
    const float* norm_next,                            // (C,) or null
    HALF* values_next,                                 // (M, C): residual · norm_next after down
    float* squares_next,                               // (M, stride_next)
    int stride_next,
    const float* qkv_bias,                             // (Q,) or null
    HALF* qkv,                                         // (M, Q)
    u32* meeting,                                      // 1 + turns of gate and up, zero between launches
    float eps, int m, int h, int c, int f, int q, int fetched) {
    extern __shared__ __align__(16) u8 memory[];
    const Shared shared(shared_address(memory));
    const u8* sent = memory + (shared.sums - shared_address(memory));
    const int parts = (c + ADD_ROWS - 1) / ADD_ROWS * SLICES, copier = int(threadIdx.x / 32) - 4 * WGS;
    auto problem = [&](int n, int k, void* out, const float* bias, float alpha) {
        Problem p{};
        p.alpha = alpha, p.bias = bias, p.out = out, p.m = m, p.n = n, p.k = k;
        return p;
    };
    const Norms mlp{nullptr, 0, 0, 0.0f, norm_mlp, values_mlp, squares_mlp, stride_mlp};
    const Norms next{nullptr, 0, 0, 0.0f, norm_next, values_next, squares_next, stride_next};
    const Norms of_mlp{squares_mlp, parts, stride_mlp, eps}, of_next{squares_next, parts, stride_next, eps};
    const Layer layer{{o_weight, mixed, problem(c, h, residual, nullptr, 1.0f), mlp},
                      {down_weight, x_down, problem(c, f, residual, nullptr, 1.0f / HEADROOM), next},
                      {gate_up_weight, x_mlp, problem(2 * f, c, activated, gate_up_bias, 1.0f), of_mlp},
                      {qkv_weight, x_next, problem(q, c, qkv, qkv_bias, 1.0f), of_next}};
    allow_next();
    if (threadIdx.x == MULTIPLIERS) {
        shared.make_barriers();
        layer.each_product([](const auto& product, int) { prefetch_map(product.weights), prefetch_map(product.x); });
    }
    __syncthreads();
    cluster_begin();
    if (copier >= 0) {
        leave_registers<COPYING>();
        if (threadIdx.x == MULTIPLIERS) copy_weights(layer, shared);
        if (threadIdx.x == MULTIPLIERS + 32) copy_tokens(layer, shared, meeting, fetched);
        __syncwarp();
        cluster_begun();
    } else {
        take_registers<REGISTERS>();
        cluster_begun();
        multiply_all(layer, shared, sent, meeting);
    }
}
