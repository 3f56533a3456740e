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
