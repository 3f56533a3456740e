// Row edits and step arrays in one launch: copies runs of words from a pinned host buffer to where they belong.
//
// The host packs runs of (address, offset, count), then the words; the GPU reads them over the bus itself, so a step
// needs no copy engine and no further synchronisation. Both are asked for at once, since a way over the bus takes
// longer than all else: a thread has its word before it knows the run that it belongs to.
#include "common.cuh"

struct Run {
    u32* to;
    u32 offset, count;  // in words of `words`; each run begins where the one before ends
};

extern "C" __global__ void __launch_bounds__(256) scatter(const Run* runs, const u32* words, int count, int first, int past) {
    extern __shared__ __align__(16) Run table[];
    const int at = first + blockIdx.x * 256 + threadIdx.x;
    const u32 word = at < past ? words[at] : 0;
    for (int i = threadIdx.x; i < count; i += 256) table[i] = runs[i];
    __syncthreads();
    allow_next();
    wait_for_previous();
    if (at >= past) return;
    int low = 0, high = count;  // the last run that begins at or before the word
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (table[middle].offset <= u32(at)) low = middle;
        else high = middle;
    }
    table[low].to[at - table[low].offset] = word;
}
