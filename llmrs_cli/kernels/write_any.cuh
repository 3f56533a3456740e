// The epilogues of linear.cuh, chosen when a kernel runs: for kernels whose compilation is long and whose epilogue is not.
#pragma once
#include "linear.cuh"

// Output of row `row`, of which `upper` says whether it is among the last 8 of a tile of 16; `up` belongs to row + 8.
DEVICE void write_any(const Problem& p, int epilogue, int token, int row, bool upper, float value, float up) {
    switch (epilogue) {
    case STORE: return write_out<STORE>(p, token, row, value, up);
    case ADD: return write_out<ADD>(p, token, row, value, up);
    case LOGITS: return write_out<LOGITS>(p, token, row, value, up);
    default:
        if (!upper) write_out<SILU>(p, token, row, value, up);
    }
}

// Where a value of a fragment goes, and whether it exists.
struct Target {
    int token, row;
    bool live;
};

// The fragments of COUNT tiles of 16 rows and 8 tokens, bias added. What is read is read several tiles at once, for
// each visit to memory costs as much as a small product. `target(tile, i)` tells where value i of a tile belongs; values 2 and 3 are those of
// eight rows below values 0 and 1.
template <int COUNT, class Where>
DEVICE void write_tiles(const Problem& p, int epilogue, const float (&values)[COUNT][4], const Where& target) {
    constexpr int AT_ONCE = COUNT > 4 ? 2 : COUNT < 4 ? COUNT : 4;  // as many as registers hold
    auto some = [&](int first, int tiles, int count, const auto& visit) {
#pragma unroll
        for (int tile = first; tile < first + tiles; tile++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const Target at = target(tile, i);
                if (i < count && at.live) visit(tile, i, at);
            }
    };
    auto each = [&](int count, const auto& visit) { some(0, COUNT, count, visit); };
    float* wide = static_cast<float*>(p.out);
    HALF* narrow = static_cast<HALF*>(p.out);
    if (epilogue == ADD) {
#pragma unroll
        for (int first = 0; first < COUNT; first += AT_ONCE) {
            float before[AT_ONCE][4];
            some(first, AT_ONCE, 4, [&](int tile, int i, const Target& at) {
                before[tile - first][i] = wide[i64(at.token) * p.n + at.row];
            });
            some(first, AT_ONCE, 4, [&](int tile, int i, const Target& at) {
                wide[i64(at.token) * p.n + at.row] = before[tile - first][i] + values[tile][i];
            });
        }
    } else if (epilogue == LOGITS) {
        each(4, [&](int tile, int i, const Target& at) { wide[i64(at.token) * p.n + at.row] = values[tile][i]; });
    } else if (epilogue == STORE) {
        each(4, [&](int tile, int i, const Target& at) {
            narrow[i64(at.token) * p.n + at.row] = to_half(values[tile][i]);
        });
    } else {
        each(2, [&](int tile, int i, const Target& at) {
            const float gate = values[tile][i], up = values[tile][i + 2];
            narrow[i64(at.token) * (p.n / 2) + at.row / 16 * 8 + at.row % 8] =
                to_half(gate / (1.0f + __expf(-gate)) * up * HEADROOM);
        });
    }
}
