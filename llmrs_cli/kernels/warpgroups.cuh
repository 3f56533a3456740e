// Warpgroups of one block that do different work (Hopper): they share out registers, and meet without the others.
#pragma once
#include "common.cuh"

// Every thread of a warpgroup asks for COUNT registers, or leaves all but COUNT; a multiple of 8.
template <int COUNT> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT)); }
template <int COUNT> DEVICE void leave_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT)); }

// `id`, 1 to 15, is free again when `threads` have arrived; who waits counts as one that arrives.
DEVICE void meeting_wait(int id, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
DEVICE void meeting_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
