// wgmma.m64nNk16 of Hopper (sm_90a): four warps multiply 64 rows from registers with N tokens in shared memory.
//
// Warp w of the four holds rows 16w … 16w + 15 in the fragments of mma.m16n8k16: A as there, D as N / 8 of its tiles.
// The second operand is a (N, 64) array of 16-bit values in shared memory, 128 bytes a row, swizzled: the 16-byte piece
// j of row r stands at piece j ^ (r % 8). It begins at a multiple of 1,024 bytes.
#pragma once
#include "wgmma_operand.cuh"

// What generic stores and copies wrote is seen by wgmma; each writing thread calls it before the barrier.
DEVICE void fence_for_wgmma() {
#if __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Registers are ready: before the first of a series of wgmma.
DEVICE void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Until at most LEFT of the series that a warp has ended still run.
template <int LEFT = 0> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory"); }
// After the wait: sums that the compiler takes for ready since the wgmma was issued are not used before.
template <int NT> DEVICE void wgmma_results(float (&d)[NT][4]) {
#pragma unroll
    for (int n = 0; n < NT; n++)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}

#if BF16
#define TYPES "f32.bf16.bf16"
#else
#define TYPES "f32.f16.f16"
#endif
#define D(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])

// d = a · x + (add ? d : 0)
DEVICE void wgmma(float (&d)[2][4], const u32 (&a)[4], u64 x, bool add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %13, 0; "
        "wgmma.mma_async.sync.aligned.m64n16k16." TYPES " {"
        "%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, %12, p, 1, 1, 0; }"
        : D(0), D(1)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x), "r"(int(add)) : "memory");
}
DEVICE void wgmma(float (&d)[4][4], const u32 (&a)[4], u64 x, bool add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %21, 0; "
        "wgmma.mma_async.sync.aligned.m64n32k16." TYPES " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, p, 1, 1, 0; }"
        : D(0), D(1), D(2), D(3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x), "r"(int(add)) : "memory");
}
DEVICE void wgmma(float (&d)[8][4], const u32 (&a)[4], u64 x, bool add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16." TYPES " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
        : D(0), D(1), D(2), D(3), D(4), D(5), D(6), D(7)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x), "r"(int(add)) : "memory");
}
DEVICE void wgmma(float (&d)[12][4], const u32 (&a)[4], u64 x, bool add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %53, 0; "
        "wgmma.mma_async.sync.aligned.m64n96k16." TYPES " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
        "{%48, %49, %50, %51}, %52, p, 1, 1, 0; }"
        : D(0), D(1), D(2), D(3), D(4), D(5), D(6), D(7), D(8), D(9), D(10), D(11)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x), "r"(int(add)) : "memory");
}
DEVICE void wgmma(float (&d)[16][4], const u32 (&a)[4], u64 x, bool add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16." TYPES " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0; }"
        : D(0), D(1), D(2), D(3), D(4), D(5), D(6), D(7),
          D(8), D(9), D(10), D(11), D(12), D(13), D(14), D(15)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x), "r"(int(add)) : "memory");
}
#undef D
#undef TYPES
