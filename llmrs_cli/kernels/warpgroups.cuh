// Warpgroups of one block that do different work (Hopper): they share out registers, and meet without the others.
#pragma once
#include "common.cuh"

// What is the same for all lanes of a warp, as the compiler can see: operands of wgmma that it finds in a uniform register
// cost no moves to one.
DEVICE int uniform(int value) { return __shfl_sync(FULL, value, 0); }
// Which warpgroup this is.
DEVICE int own_group() { return uniform(threadIdx.x / 128); }

// Every thread of a warpgroup asks for COUNT registers, or leaves all but COUNT; a multiple of 8.
template <int COUNT> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT)); }
template <int COUNT> DEVICE void leave_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT)); }

// `id`, 1 to 15, is free again when `threads` have arrived; who waits counts as one that arrives.
DEVICE void meeting_wait(int id, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
DEVICE void meeting_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
