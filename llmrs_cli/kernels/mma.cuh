// Tensor-core fragments of mma.m16n8k16 (sm_80 and newer), float32 accumulators.
//
// With g = lane / 4 and c = lane % 4, a lane holds
//   A (16 × 16): a0 (g, 2c..) a1 (g+8, 2c..) a2 (g, 2c+8..) a3 (g+8, 2c+8..)   two k values a register
//   B (16 × 8):  b0 (k 2c.., n g) b1 (k 2c+8.., n g)
//   D (16 × 8):  d0 d1 (g, 2c 2c+1) d2 d3 (g+8, 2c 2c+1)
#pragma once
#include "common.cuh"

DEVICE void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if BF16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8 × 8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
DEVICE void load_matrices(u32 (&r)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared));
}
DEVICE void load_matrices_transposed(u32 (&r)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared));
}

// An 8 × 8 matrix of 16-bit values, of which lane 4g + c holds row g and columns 2c and the next, transposed.
DEVICE u32 transposed(u32 pair) {
    u32 out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
    return out;
}
