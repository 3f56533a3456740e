// wgmma.m64nNk16 of Hopper with both operands in shared memory, N = ROWS, a multiple of 16 from 64 to 256.
//
// Both are arrays of 64 columns of 16-bit values, 128 bytes a row, as the copy engine swizzles them: the 16-byte piece j
// of row r stands at piece j ^ (r % 8), and an array begins at a multiple of 1,024 bytes. d[j][i] are the sums of a lane:
// rows g and g + 8 (i / 2) of its warp's 16, columns 8j + 2c + i % 2, where g = lane / 4 and c = lane % 4.
#pragma once
#include "wgmma_operand.cuh"

typedef float (&Accumulator)[ROWS / 8][4];

// An operand of the compiler's own that is changed by what it cannot see: sums that are used, or ready, only from here on.
DEVICE void touch(Accumulator d) {
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
        asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
}
DEVICE void wgmma_begin(Accumulator d) {
    touch(d);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Waits until no more than LEFT series of wgmma run.
template <int LEFT> DEVICE void wgmma_wait(Accumulator d) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
    touch(d);
}

#if BF16
#define TYPES "f32.bf16.bf16"
#else
#define TYPES "f32.f16.f16"
#endif
// The assembler wants every register by its number. Operands 0 to 2 are the descriptors and whether to add; sum q is
// operand q + 3. NAMES10(t) are operands 10t … 10t + 9, SUMS10(t) the sums that they stand for.
#define SUM(q) "+f"(d[(q) / 4][(q) % 4])
#define SUMS1(t) SUM(10 * t - 3)
#define SUMS3(t) SUMS1(t), SUM(10 * t - 2), SUM(10 * t - 1)
#define SUMS5(t) SUMS3(t), SUM(10 * t), SUM(10 * t + 1)
#define SUMS7(t) SUMS5(t), SUM(10 * t + 2), SUM(10 * t + 3)
#define SUMS9(t) SUMS7(t), SUM(10 * t + 4), SUM(10 * t + 5)
#define SUMS10(t) SUMS9(t), SUM(10 * t + 6)
#define MORE10(t) , SUMS10(t)
#define NAMES1(t) ", %" #t "0"
#define NAMES3(t) NAMES1(t) ", %" #t "1, %" #t "2"
#define NAMES5(t) NAMES3(t) ", %" #t "3, %" #t "4"
#define NAMES7(t) NAMES5(t) ", %" #t "5, %" #t "6"
#define NAMES9(t) NAMES7(t) ", %" #t "7, %" #t "8"
#define NAMES10(t) NAMES9(t) ", %" #t "9"
#define TENS2(f) f(1) f(2)
#define TENS3(f) TENS2(f) f(3)
#define TENS4(f) TENS3(f) f(4)
#define TENS5(f) TENS4(f) f(5)
#define TENS6(f) TENS5(f) f(6)
#define TENS7(f) TENS6(f) f(7)
#define TENS8(f) TENS7(f) f(8)
#define TENS9(f) TENS8(f) f(9)
#define TENS10(f) TENS9(f) f(10)
#define TENS11(f) TENS10(f) f(11)
#define TENS12(f) TENS11(f) f(12)

// d = a · b + (add ? d : 0), over 16 columns.
#define WGMMA(N, TENS, t, REST)                                                                                      \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; wgmma.mma_async.sync.aligned.m64n" #N "k16." TYPES           \
                 " {%3, %4, %5, %6, %7, %8, %9" TENS(NAMES10) NAMES##REST(t) "}, %0, %1, p, 1, 1, 0, 0; }"  \
                 : "+l"(a), "+l"(b), "+r"(add), SUM(0), SUM(1), SUM(2), SUM(3), SUM(4), SUM(5),                      \
                   SUM(6) TENS(MORE10), SUMS##REST(t) :: "memory")
DEVICE void wgmma(Accumulator d, u64 a, u64 b, u32 add) {
#if ROWS == 64
    WGMMA(64, TENS2, 3, 5);
#elif ROWS == 80
    WGMMA(80, TENS3, 4, 3);
#elif ROWS == 96
    WGMMA(96, TENS4, 5, 1);
#elif ROWS == 112
    WGMMA(112, TENS4, 5, 9);
#elif ROWS == 128
    WGMMA(128, TENS5, 6, 7);
#elif ROWS == 144
    WGMMA(144, TENS6, 7, 5);
#elif ROWS == 160
    WGMMA(160, TENS7, 8, 3);
#elif ROWS == 176
    WGMMA(176, TENS8, 9, 1);
#elif ROWS == 192
    WGMMA(192, TENS8, 9, 9);
#elif ROWS == 208
    WGMMA(208, TENS9, 10, 7);
#elif ROWS == 224
    WGMMA(224, TENS10, 11, 5);
#elif ROWS == 240
    WGMMA(240, TENS11, 12, 3);
#elif ROWS == 256
    WGMMA(256, TENS12, 13, 1);
#else
#error "no wgmma for this many rows"
#endif
}
