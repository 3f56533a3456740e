// The four products of layer_wide: which part of each is a block's own, and when it may read what others have written.
//
// Of the meeting, words in memory, the first counts the blocks that have written o, down and qkv, and each of the others
// those that have written a turn of gate and up.
#pragma once
#include "grid_barrier.cuh"
#include "tensor_copy.cuh"
#include "wide_epilogue.cuh"

constexpr int COLUMNS = 64;  // of a step

// One of the four: what it multiplies and what follows, and this block's part of it. EIGHTS: of rows of a tile; PARTS: blocks
// that share its columns.
template <int EIGHTS_, int PARTS, Epilogue THEN> struct Linear {
    static constexpr int EIGHTS = EIGHTS_;
    const TensorMap &weights, &x;
    Problem p;
    Norms norms;
    // Calls act(first row, first step, past the last step) for each of this block's tiles.
    template <class Act> DEVICE void each_tile(const Act& act) const {
        const int steps = (p.k + COLUMNS - 1) / COLUMNS, slice = blockIdx.x % PARTS;
#pragma unroll 1
        for (int row = blockIdx.x / PARTS * EIGHTS * 8; row < p.n; row += gridDim.x / PARTS * EIGHTS * 8)
            act(row, steps * slice / PARTS, steps * (slice + 1) / PARTS);
    }
};

struct Layer {
    typedef Linear<ADD_ROWS / 8, SLICES, ADD> Add;
    Add o, down;
    Linear<ROWS / 8, 1, SILU> gate_up;
    Linear<QKV_ROWS / 8, SLICES, STORE> qkv;  // without rows behind the last layer
    DEVICE u32 arrivals() const { return (qkv.p.n ? 3 : 2) * gridDim.x; }
    DEVICE int gate_up_tiles() const { return (gate_up.p.n + ROWS - 1) / ROWS; }
    DEVICE int turns() const { return (gate_up_tiles() + gridDim.x - 1) / gridDim.x; }
    // o, or down: the same code, so that it has been fetched when down needs it.
    DEVICE Add add(bool second) const {
        Add chosen{second ? down.weights : o.weights, second ? down.x : o.x, o.p, o.norms};
        if (second) chosen.p = down.p, chosen.norms = down.norms;
        return chosen;
    }
    // Calls act(product, how many are before it) in their order.
    template <class Act> DEVICE void each_product(const Act& act) const {
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            act(add(half), 2 * half);
            if (half == 0) act(gate_up, 1);
            else if (qkv.p.n) act(qkv, 3);
        }
    }
};

// Until everything has been written that this block reads of the product after `before` others.
DEVICE void wait_for_tokens(const Layer& layer, const u32* meeting, int before) {
    if (before == 0) wait_for_previous();
    if (before == 1 || before == 3) grid_wait(meeting, (before + 1) / 2 * gridDim.x);
    if (before == 2) {
        const int columns = layer.down.p.k, steps = (columns + COLUMNS - 1) / COLUMNS, slice = blockIdx.x % SLICES;
        const int first = steps * slice / SLICES * COLUMNS, last = min(steps * (slice + 1) / SLICES * COLUMNS, columns) - 1;
        const int turn_rows = ROWS * gridDim.x, tiles = layer.gate_up_tiles();
#pragma unroll 1
        for (int turn = 2 * first / turn_rows; turn <= 2 * last / turn_rows; turn++)
            grid_wait(meeting + 1 + turn, min(tiles - turn * int(gridDim.x), int(gridDim.x)));
    }
    fence_for_copies();
}
