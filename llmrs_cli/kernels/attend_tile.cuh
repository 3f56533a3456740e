// A warp's step of decode attention: the queries of a key head meet 16 tokens of keys and values in shared memory.
//
// The query heads of a key head are the rows of an mma, up to 16. Softmax goes on from tile to tile: sums are relative to
// the largest score so far (Dao et al., 2022).
#pragma once
#include "attention.cuh"

constexpr int TILE_BYTES = 16 * ROW_BYTES;       // 16 tokens of keys or of values
constexpr int D_TILES = HEAD_DIM / 8;
constexpr bool QUERIES_SHARED = HEAD_DIM > 128;  // large heads leave no registers for the queries

// Fragments of the queries of one key head, unless they stay in shared memory.
typedef u32 Queries[QUERIES_SHARED ? 1 : STEPS][4];

// From L2: L1 may hold them as they were in another layer, where nothing was waited for.
DEVICE void load_queries(Queries& held, const HALF* q_rows, int group) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int j = 0; j < STEPS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = g + i % 2 * 8, column = j * 16 + c * 2 + i / 2 * 8;
            held[j][i] = row < group ? __ldcg(reinterpret_cast<const u32*>(q_rows + row * HEAD_DIM + column)) : 0;
        }
}

// What a warp has seen so far, of rows g and g + 8.
struct Rows {
    float acc[D_TILES][4];
    float top[2] = {NEVER, NEVER}, mass[2] = {0.0f, 0.0f};

    DEVICE Rows() {
#pragma unroll
        for (int j = 0; j < D_TILES; j++) acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0.0f;
    }

    // Keys at `tile`, values TILE_BYTES further, of tokens `first` to first + 15; those from `oldest` up to `context` count.
    DEVICE void add(const Queries& held, u32 queries, u32 tile, int first, int context, int oldest, float scale) {
        const int lane = threadIdx.x % 32, c = lane % 4;
        float score[2][4] = {};
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            u32 k[4], a[4];
            if constexpr (QUERIES_SHARED) {
                load_matrices(a, queries + lane % 16 * ROW_BYTES + j * 32 + lane / 16 * 16);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) a[i] = held[j][i];
            }
            load_matrices(k, tile + (lane % 8 + lane / 16 * 8) * ROW_BYTES + j * 32 + lane / 8 % 2 * 16);
            mma(score[0], a[0], a[1], a[2], a[3], k[0], k[1]);
            mma(score[1], a[0], a[1], a[2], a[3], k[2], k[3]);
        }
        float peak[2] = {top[0], top[1]};
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = first + t * 8 + c * 2 + i % 2;
                const bool seen = key < context && key >= oldest;
                score[t][i] = seen ? score[t][i] * scale : NEVER;
                peak[i / 2] = fmaxf(peak[i / 2], score[t][i]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            peak[r] = fmaxf(peak[r], __shfl_xor_sync(FULL, peak[r], 1));
            peak[r] = fmaxf(peak[r], __shfl_xor_sync(FULL, peak[r], 2));
        }
        if (__any_sync(FULL, peak[0] > top[0] || peak[1] > top[1])) {
            const float shrink[2] = {exp2_fast(top[0] - peak[0]), exp2_fast(top[1] - peak[1])};
#pragma unroll
            for (int j = 0; j < D_TILES; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) acc[j][i] *= shrink[i / 2];
            mass[0] *= shrink[0], mass[1] *= shrink[1];
            top[0] = peak[0], top[1] = peak[1];
        }
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // A row may have seen no key yet: then top is NEVER and so are its scores.
                score[t][i] = score[t][i] > 0.5f * NEVER ? exp2_fast(score[t][i] - top[i / 2]) : 0.0f;
                mass[i / 2] += score[t][i];
            }
        const u32 p0 = pack2(score[0][0], score[0][1]), p1 = pack2(score[0][2], score[0][3]);
        const u32 p2 = pack2(score[1][0], score[1][1]), p3 = pack2(score[1][2], score[1][3]);
#pragma unroll
        for (int j = 0; j < D_TILES; j += 2) {
            u32 v[4];
            load_matrices_transposed(
                v, tile + TILE_BYTES + (lane % 16) * ROW_BYTES + j * 16 + lane / 16 * 16);
            mma(acc[j], p0, p1, p2, p3, v[0], v[1]);
            mma(acc[j + 1], p0, p1, p2, p3, v[2], v[3]);
        }
    }

    // The mass of a row is spread over the lanes of a quad until now.
    DEVICE void join_lanes() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            mass[r] += __shfl_xor_sync(FULL, mass[r], 1);
            mass[r] += __shfl_xor_sync(FULL, mass[r], 2);
        }
    }
};
