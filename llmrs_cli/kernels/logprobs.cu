// Log-softmax of raw logits at one id a row, and the greatest alternatives, lower ids first among equals.
// One block a row; each alternative is one pass that takes the best below the one before.
#include "common.cuh"

constexpr int THREADS = 1024;
constexpr int WARPS = THREADS / 32;

struct Best {
    float value;
    int id;
};

DEVICE bool before(const Best& a, const Best& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

extern "C" __global__ void __launch_bounds__(THREADS) logprobs(
    const float* logits,   // (R, V)
    const int* targets,    // target of row r is targets[r · stride]
    float* at,             // (R,) log-probability of the target
    int* top_ids,          // (R, L)
    float* top_logprobs,   // (R, L)
    int* invalid,          // (R,) the row holds a NaN
    int vocab, int stride, int alternatives) {
    __shared__ float sums[WARPS];
    __shared__ Best bests[WARPS];
    allow_next();
    wait_for_previous();
    const float* l = logits + i64(blockIdx.x) * vocab;
    float top = -__int_as_float(0x7f800000);
    int nan = 0;
    for (int id = threadIdx.x; id < vocab; id += THREADS) top = fmaxf(top, l[id]), nan |= l[id] != l[id];
    nan = __syncthreads_or(nan);
    top = warp_max(top);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, sums[w]);
    __syncthreads();
    float sum = 0.0f;
    for (int id = threadIdx.x; id < vocab; id += THREADS) sum += expf(l[id] - top);
    const float whole = logf(block_sum<WARPS>(sum, sums));
    if (threadIdx.x == 0) {
        at[blockIdx.x] = l[targets[i64(blockIdx.x) * stride]] - top - whole;
        invalid[blockIdx.x] = nan;
    }
    Best last{__int_as_float(0x7f800000), -1};
    for (int i = 0; i < alternatives; i++) {
        Best best{-__int_as_float(0x7f800000), vocab};
        for (int id = threadIdx.x; id < vocab; id += THREADS) {
            const Best own{l[id], id};
            if (before(last, own) && before(own, best)) best = own;
        }
        for (int step = 16; step; step >>= 1) {
            const Best other{__shfl_xor_sync(FULL, best.value, step), __shfl_xor_sync(FULL, best.id, step)};
            if (before(other, best)) best = other;
        }
        if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
        __syncthreads();
        for (int w = 0; w < WARPS; w++)
            if (before(bests[w], best)) best = bests[w];
        __syncthreads();
        if (threadIdx.x == 0) {
            top_ids[i64(blockIdx.x) * alternatives + i] = best.id < vocab ? best.id : 0;
            top_logprobs[i64(blockIdx.x) * alternatives + i] = best.value - top - whole;
        }
        last = best;
    }
}
