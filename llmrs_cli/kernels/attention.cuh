// Shared by the attention kernels: pages of keys and values, online softmax.
//
// A page holds 64 tokens of one layer: keys and values are each [page][kv head][64][D], so the 64 × D values that
// one head needs of one page lie together. D is the macro HEAD_DIM, a multiple of 16.
#pragma once
#include "mma.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif

// Blocks may take 99 KiB of shared memory on some GPUs, 160 and more on the others.
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 1200
constexpr bool LITTLE_SHARED = true;
#else
constexpr bool LITTLE_SHARED = false;
#endif

constexpr int PAGE = 64;
constexpr int STEPS = HEAD_DIM / 16;          // of an mma along a head
constexpr int ROW_BYTES = HEAD_DIM * 2 + 16;  // of a shared tile; 16 odd: ldmatrix meets no bank twice
constexpr float NEVER = -1e30f;               // a score that no key reaches, finite so that differences are
