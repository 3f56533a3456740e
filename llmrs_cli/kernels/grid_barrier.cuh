// A meeting in memory of all blocks of a launch, which must run at the same time: nobody waits for a block that has no room.
#pragma once
#include "common.cuh"

// What this thread and those it has met have written is seen by who waits for the arrival; how many came before it.
DEVICE u32 grid_arrive(u32* arrived) {
    u32 before = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("atom.release.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
#endif
    return before;
}
// Until so many have arrived.
DEVICE void grid_wait(const u32* arrived, u32 wanted) {
#if __CUDA_ARCH__ >= 900
    u32 found = 0;
    while (found < wanted)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(arrived) : "memory");
#endif
}
// What is written to memory is seen by the copy engine: called by who wrote it before it arrives, and by who asks for a copy
// after it has waited.
DEVICE void fence_for_copies() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}
