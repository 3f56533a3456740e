// Row edits and step arrays in one launch: copies runs of words from a pinned host buffer to where they belong.
//
// The host packs runs of (address, offset, count), then the words; the GPU reads them over the bus itself, so a step
// needs no copy engine and no further synchronisation. Blocks of one run share its words.
#include "common.cuh"

struct Run {
    u32* to;
    u32 offset, count;  // in words of `words`
};

extern "C" __global__ void __launch_bounds__(256) scatter(const Run* runs, const u32* words) {
    allow_next();
    wait_for_previous();
    const Run run = runs[blockIdx.x];
    for (u32 i = blockIdx.y * 256 + threadIdx.x; i < run.count; i += gridDim.y * 256) run.to[i] = words[run.offset + i];
}
