// The two products of prompt attention with wgmma.m64nNk16 of Hopper (sm_90a): scores, and probabilities times values.
//
// Arrays in shared memory are stripes of 64 columns of 16-bit values, 128 bytes a row, as the copy engine swizzles them:
// the 16-byte piece j of row r stands at piece j ^ (r % 8), and a stripe begins at a multiple of 1,024 bytes. d[j][i] are
// the sums of a lane: rows g and g + 8 (i / 2) of its warp's 16, columns 8j + 2c + i % 2, where g = lane / 4 and c = lane % 4.
#pragma once
#include "wgmma.cuh"

// Descriptor of values as the second operand, 16 rows of which are multiplied and whose columns lie together: bits 16–29 the
// bytes from one stripe to the next, 32–45 those from 8 rows to the next 8.
DEVICE u64 wgmma_columns(u32 shared) {
    return u64(shared >> 4 & 0x3fffu) | u64(KEYS * 128 >> 4) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

#if BF16
#define TYPES "f32.bf16.bf16"
#else
#define TYPES "f32.f16.f16"
#endif
#define D(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define D8 D(0), D(1), D(2), D(3), D(4), D(5), D(6), D(7)
#define D16 D8, D(8), D(9), D(10), D(11), D(12), D(13), D(14), D(15)
#define NAMES8 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                              \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES16 NAMES8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d = queries · keysᵀ + (add ? d : 0), over 16 columns of both.
DEVICE void wgmma_scores(float (&d)[8][4], u64 queries, u64 keys, u32 add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16." TYPES
        " {" NAMES8 "}, %32, %33, p, 1, 1, 0, 0; }"
        : D8 : "l"(queries), "l"(keys), "r"(add) : "memory");
}
DEVICE void wgmma_scores(float (&d)[16][4], u64 queries, u64 keys, u32 add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16." TYPES
        " {" NAMES16 "}, %64, %65, p, 1, 1, 0, 0; }"
        : D16 : "l"(queries), "l"(keys), "r"(add) : "memory");
}

// d += p · values, over 16 keys; p as the first operand of mma.m16n8k16.
DEVICE void wgmma_values(float (&d)[8][4], const u32 (&p)[4], u64 values) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16." TYPES " {" NAMES8 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : D8 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(values) : "memory");
}
DEVICE void wgmma_values(float (&d)[16][4], const u32 (&p)[4], u64 values) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16." TYPES " {" NAMES16 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : D16 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(values) : "memory");
}
#undef NAMES16
#undef NAMES8
#undef D16
#undef D8
#undef D
#undef TYPES
