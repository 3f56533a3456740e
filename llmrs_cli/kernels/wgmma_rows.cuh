// wgmma.m64nNk16 as in wgmma_shared.cuh, for tiles of several sizes in one kernel: N, a multiple of 8 from 16 to 256, is
// that of the sums. Where N is ROWS, wgmma_shared.cuh's own form is taken.
#pragma once
#include "wgmma_shared.cuh"

template <int EIGHTS> DEVICE void touch(float (&d)[EIGHTS][4]) {
#pragma unroll
    for (int j = 0; j < EIGHTS; j++)
        asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
}
template <int EIGHTS> DEVICE void wgmma_begin(float (&d)[EIGHTS][4]) {
    touch(d);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int LEFT, int EIGHTS> DEVICE void wgmma_wait(float (&d)[EIGHTS][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
    touch(d);
}

#define TENS0(f)
#define TENS1(f) f(1)
// d = a · b + (add ? d : 0), over 16 columns.
template <int EIGHTS> DEVICE void wgmma(float (&d)[EIGHTS][4], u64 a, u64 b, u32 add) {
    static_assert(EIGHTS >= 2 && EIGHTS <= 32, "no wgmma for this many rows");
    if constexpr (EIGHTS == 2) WGMMA(16, TENS0, 1, 1);
    if constexpr (EIGHTS == 3) WGMMA(24, TENS0, 1, 5);
    if constexpr (EIGHTS == 4) WGMMA(32, TENS0, 1, 9);
    if constexpr (EIGHTS == 5) WGMMA(40, TENS1, 2, 3);
    if constexpr (EIGHTS == 6) WGMMA(48, TENS1, 2, 7);
    if constexpr (EIGHTS == 7) WGMMA(56, TENS2, 3, 1);
    if constexpr (EIGHTS == 8) WGMMA(64, TENS2, 3, 5);
    if constexpr (EIGHTS == 9) WGMMA(72, TENS2, 3, 9);
    if constexpr (EIGHTS == 10) WGMMA(80, TENS3, 4, 3);
    if constexpr (EIGHTS == 11) WGMMA(88, TENS3, 4, 7);
    if constexpr (EIGHTS == 12) WGMMA(96, TENS4, 5, 1);
    if constexpr (EIGHTS == 13) WGMMA(104, TENS4, 5, 5);
    if constexpr (EIGHTS == 14) WGMMA(112, TENS4, 5, 9);
    if constexpr (EIGHTS == 15) WGMMA(120, TENS5, 6, 3);
    if constexpr (EIGHTS == 16) WGMMA(128, TENS5, 6, 7);
    if constexpr (EIGHTS == 17) WGMMA(136, TENS6, 7, 1);
    if constexpr (EIGHTS == 18) WGMMA(144, TENS6, 7, 5);
    if constexpr (EIGHTS == 19) WGMMA(152, TENS6, 7, 9);
    if constexpr (EIGHTS == 20) WGMMA(160, TENS7, 8, 3);
    if constexpr (EIGHTS == 21) WGMMA(168, TENS7, 8, 7);
    if constexpr (EIGHTS == 22) WGMMA(176, TENS8, 9, 1);
    if constexpr (EIGHTS == 23) WGMMA(184, TENS8, 9, 5);
    if constexpr (EIGHTS == 24) WGMMA(192, TENS8, 9, 9);
    if constexpr (EIGHTS == 25) WGMMA(200, TENS9, 10, 3);
    if constexpr (EIGHTS == 26) WGMMA(208, TENS9, 10, 7);
    if constexpr (EIGHTS == 27) WGMMA(216, TENS10, 11, 1);
    if constexpr (EIGHTS == 28) WGMMA(224, TENS10, 11, 5);
    if constexpr (EIGHTS == 29) WGMMA(232, TENS10, 11, 9);
    if constexpr (EIGHTS == 30) WGMMA(240, TENS11, 12, 3);
    if constexpr (EIGHTS == 31) WGMMA(248, TENS11, 12, 7);
    if constexpr (EIGHTS == 32) WGMMA(256, TENS12, 13, 1);
}
