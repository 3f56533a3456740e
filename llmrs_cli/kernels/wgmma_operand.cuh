// What both forms of wgmma share: where an operand in shared memory stands, and the end of a series.
#pragma once
#include "common.cuh"

DEVICE void wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Descriptor of columns 16 · step and following: bits 0–13 the address, 32–45 the bytes from 8 rows to the next 8 (both
// without their last 4 bits), 62–63 the swizzle of 128 bytes.
DEVICE u64 wgmma_operand(u32 shared, int step) {
    return u64((shared + step * 32) >> 4 & 0x3fffu) | u64(1) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}
// The descriptor of what stands `bytes` further on. Shared memory ends before the field of addresses does.
DEVICE u64 further(u64 operand, u32 bytes) { return (operand >> 32 << 32) | (u32(operand) + bytes / 16); }
