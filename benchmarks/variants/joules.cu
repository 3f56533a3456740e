// What a byte and a product cost in energy on Hopper: kernels that do nothing else. joules.py launches them.
#include "cluster_barrier.cuh"
#include "wgmma_shared.cuh"
#ifndef SHARERS
#define SHARERS 1
#endif
#ifndef WGS
#define WGS 2
#endif

constexpr int SLOTS = 8, BOX = 16384, PART = BOX / SHARERS, STAGE = (64 * WGS + ROWS) * 128, STAGES = 4;

// Brings `count` boxes to every block, of an array of `boxes` that all go through together. SHARERS blocks, a cluster, have
// the same boxes, of which each brings a part to all.
extern "C" __global__ void __cluster_dims__(SHARERS, 1, 1) __launch_bounds__(64, 1)
    reading(const u8* array, i64 boxes, int count) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ __align__(8) u64 barriers[2 * SLOTS];
    const u32 full = shared_address(barriers), empty = full + 8 * SLOTS;
    const int rank = blockIdx.x % SHARERS;
    if (threadIdx.x == 0) {
        for (int s = 0; s < SLOTS; s++) barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, SHARERS);
        barriers_ready();
    }
    __syncthreads();
    cluster_begin(), cluster_begun();
    Slot<SLOTS> slot;
    if (threadIdx.x == 0) {
        for (int i = 0; i < count; i++, slot.next()) {
            const i64 box = (i64(i) * (gridDim.x / SHARERS) + blockIdx.x / SHARERS) % boxes;
            const u32 to = shared_address(shared) + slot.at * BOX + rank * PART;
            const u8* from = array + box * BOX + rank * PART;
            barrier_wait(empty + slot.at * 8, slot.phase ^ 1);
            barrier_expect(full + slot.at * 8, BOX);
            if constexpr (SHARERS == 1) copy_bytes(to, from, PART, full + slot.at * 8);
            else asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                              " [%0], [%1], %2, [%3], %4;"
                              :: "r"(to), "l"(from), "r"(PART), "r"(full + slot.at * 8), "h"(u16((1 << SHARERS) - 1)) : "memory");
        }
        for (int s = 0; s < SLOTS; s++, slot.next()) barrier_wait(empty + slot.at * 8, slot.phase ^ 1);
    } else if (threadIdx.x == 32) {
        for (int i = 0; i < count; i++, slot.next()) {
            barrier_wait(full + slot.at * 8, slot.phase);
            for (int r = 0; r < SHARERS; r++) barrier_leave_there(cluster_address(empty + slot.at * 8, r));
        }
    }
    __syncthreads();
    cluster_begin(), cluster_begun();
}

// `count` steps of 64 columns, over and over the same four stages of `data`: WGS times 64 tokens with ROWS rows.
extern "C" __global__ void __launch_bounds__(128 * WGS, 1) multiplying(const u8* data, int count, float* out) {
    extern __shared__ __align__(16) u8 shared[];
    u8* ring = shared + ((1024 - shared_address(shared) % 1024) & 1023);
    for (int i = threadIdx.x * 16; i < STAGES * STAGE; i += 128 * WGS * 16)
        *reinterpret_cast<uint4*>(ring + i) = *reinterpret_cast<const uint4*>(data + i);
    stores_ready();
    __syncthreads();
    float d[ROWS / 8][4] = {};
    const u32 xs = shared_address(ring) + threadIdx.x / 128 * 64 * 128, ws = shared_address(ring) + 64 * WGS * 128;
#pragma unroll 1
    for (int step = 0; step < count; step++) {
        const u32 at = step % STAGES * STAGE;
        wgmma_begin(d);
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma(d, wgmma_operand(xs + at, i), wgmma_operand(ws + at, i), 1);
        wgmma_end();
        wgmma_wait<0>(d);
    }
    if (d[0][0] == 12345.0f) out[threadIdx.x] = d[0][0];  // never, but the compiler cannot know
}

// One block that sleeps.
extern "C" __global__ void waiting(i64 nanoseconds) {
    u64 began, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    do {
        asm volatile("nanosleep.u32 10000;");
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - began < u64(nanoseconds));
}
