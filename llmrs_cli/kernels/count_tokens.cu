// What penalties count, anew for a row that starts: which ids its prompt holds, and how often each is in its answer.
// One block a row. Counts are pairs of 16 bits in a word: bit 15 says prompt, the rest counts up to 32,767.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(1024) count_tokens(
    const int* starts,  // (N, 3) row, tokens known, tokens of the prompt
    const int* pool,    // (rows, P)
    u32* counts,        // (rows, W / 2)
    int pool_width, int words) {
    allow_next();
    wait_for_previous();
    const int row = starts[3 * blockIdx.x], known = starts[3 * blockIdx.x + 1], prompt = starts[3 * blockIdx.x + 2];
    u32* count = counts + i64(row) * words;
    for (int i = threadIdx.x; i < words; i += 1024) count[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < known; i += 1024) {
        const int id = pool[i64(row) * pool_width + i], shift = id % 2 * 16;
        u32* word = count + id / 2;
        if (i < prompt) {
            atomicOr(word, 0x8000u << shift);
        } else {
            u32 seen = *word, old;
            do {
                old = seen;
                if ((old >> shift & 0x7fffu) == 0x7fffu) break;
                seen = atomicCAS(word, old, old + (1u << shift));
            } while (seen != old);
        }
    }
}
