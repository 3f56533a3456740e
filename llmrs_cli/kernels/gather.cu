// The inputs of a step from the row state: token ids and where each token's key and value go.
#include "common.cuh"

constexpr int PAGE = 64;

extern "C" __global__ void __launch_bounds__(256) gather(
    const int* pool,       // (rows, P) tokens of every row
    const int* tables,     // (rows, MB) pages of every row
    const int* rows,       // (T,) row of each token, or -1: padding
    const int* positions,  // (T,)
    int* ids,              // (T,) or -1
    int* slots,            // (T,) page · 64 + offset, or -1
    const int* scored,     // (S,) tokens that are scored
    int* targets,          // (S,) the token that follows each
    int tokens, int scores, int pool_width, int table_width) {
    allow_next();
    wait_for_previous();
    const int t = blockIdx.x * 256 + threadIdx.x;
    if (t < tokens) {
        const int row = rows[t], position = positions[t];
        ids[t] = row < 0 ? -1 : pool[i64(row) * pool_width + position];
        slots[t] = row < 0 ? -1 : tables[i64(row) * table_width + position / PAGE] * PAGE + position % PAGE;
    }
    if (t < scores) targets[t] = pool[i64(rows[scored[t]]) * pool_width + positions[scored[t]] + 1];
}
