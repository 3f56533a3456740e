// How long a block waits for 14 KiB that L2 holds, while weights stream to the same multiprocessor. behind.py launches it.
//
// WAY says how they stream, as fast as memory gives them, 96 KiB on their way: not at all, through L1 by four warps
// (cp.async, or loads to registers), or by the copy engine, which one thread feeds.
#include "cluster_barrier.cuh"
#ifndef WAY
#define WAY 0
#endif
enum Way { NOT, COPIES, LOADS, BULK };

constexpr int ASKING = 128, STREAMING = 128, SLOTS = 24, BOX = 4096, ASKED = 7;
constexpr int AHEAD = SLOTS * BOX / (STREAMING * 16);  // of a thread, 16 bytes each

DEVICE u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
DEVICE u32 cycles() {
    u32 now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
    return now;
}
// Past L1, which must not have it from the round before.
DEVICE uint4 load_l2(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

struct Stream {
    const u8* from;
    i64 bytes, at;
    DEVICE Stream(const u8* weights, i64 bytes) : from(weights), bytes(bytes), at(i64(blockIdx.x) * BOX) {}
    DEVICE const u8* next() {
        const u8* found = from + at;
        at += i64(gridDim.x) * BOX;
        if (at + BOX > bytes) at -= bytes / BOX / gridDim.x * gridDim.x * BOX;
        return found;
    }
};

extern "C" __global__ void __launch_bounds__(ASKING + STREAMING, 1)
    behind(const u8* weights, i64 bytes, const uint4* x, int rounds, u32* took, u32* sink) {
    extern __shared__ __align__(128) u8 ring[];
    __shared__ __align__(8) u64 barriers[SLOTS];
    __shared__ volatile int done;
    const u32 full = shared_address(barriers);
    if (threadIdx.x == 0) {
        done = 0;
        for (int s = 0; s < SLOTS; s++) barrier_init(full + s * 8, 1);
        barriers_ready();
    }
    __syncthreads();
    const int own = threadIdx.x - ASKING;
    u32 sum = 0;
    if (own < 0) {
        const u64 began = nanoseconds();
        while (nanoseconds() - began < 20000) {}  // the stream flows
        for (int round = 0; round < rounds; round++) {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            const u32 start = cycles();
            uint4 v[ASKED];
#pragma unroll
            for (int i = 0; i < ASKED; i++) v[i] = load_l2(x + ((round % 64 * ASKED + i) * ASKING + threadIdx.x));
#pragma unroll
            for (int i = 0; i < ASKED; i++) sum += v[i].x ^ v[i].w;
            asm volatile("" : "+r"(sum));
            asm volatile("bar.sync 1, 128;" ::: "memory");
            if (threadIdx.x == 0) took[blockIdx.x * rounds + round] = cycles() - start;
        }
        if (threadIdx.x == 0) done = 1;
    } else if (WAY == BULK) {
        if (own == 0) {
            Stream stream(weights, bytes);
            Slot<SLOTS> slot;
            auto ask = [&] {
                barrier_expect(full + slot.at * 8, BOX);
                copy_bytes(shared_address(ring) + slot.at * BOX, stream.next(), BOX, full + slot.at * 8);
            };
            for (int s = 0; s < SLOTS; s++, slot.next()) ask();
            slot = Slot<SLOTS>();
            for (; !done; slot.next()) barrier_wait(full + slot.at * 8, slot.phase), ask();
            for (int s = 0; s < SLOTS; s++, slot.next()) barrier_wait(full + slot.at * 8, slot.phase);
        }
    } else if (WAY == COPIES) {
        Stream stream(weights, bytes);
        int slot = 0;
        auto ask = [&] {
            const u8* from = stream.next() + own * 16;
            copy_async(shared_address(ring) + slot * BOX + own * 16, from, true);
            copy_async(shared_address(ring) + slot * BOX + BOX / 2 + own * 16, from + BOX / 2, true);
            copy_commit();
            if (++slot == SLOTS) slot = 0;
        };
        for (int s = 0; s < SLOTS; s++) ask();
        while (!done) copy_wait<SLOTS - 1>(), ask();
        copy_wait<0>();
    } else if (WAY == LOADS) {
        Stream stream(weights, bytes);
        while (!done) {
            uint4 v[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i += 2) {
                const u8* from = stream.next() + own * 16;
                v[i] = load_l2(reinterpret_cast<const uint4*>(from));
                v[i + 1] = load_l2(reinterpret_cast<const uint4*>(from + BOX / 2));
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) sum += v[i].x ^ v[i].y;
            asm volatile("" : "+r"(sum));
        }
    }
    if (sum == 0x12345678) sink[threadIdx.x] = sum;
}
