// What a warp multiplies of a box that the copy engine has brought: COUNT tiles of 16 rows and 64 columns of W, with NT eights
// of tokens. A line of the box is 128 bytes, its 16-byte pieces swizzled by its number, so ldmatrix meets no conflicts.
#pragma once
#include "mma.cuh"

constexpr int BOX_COLUMNS = 64, BOX_LINE = 2 * BOX_COLUMNS;  // of a box, and bytes of a line
constexpr int X_STRIDE = BOX_LINE + 16;                      // bytes of a token's columns beside it: no bank conflicts

template <int COUNT, int NT> struct BoxTiles {
    u32 w[COUNT], x[NT];  // where this lane's rows of the 8 × 8 matrices begin: in a box, and of tokens

    // `rows` of the box and `tokens`, `stride` bytes apart from `x_at` on; what lies beyond repeats the last.
    DEVICE BoxTiles(int rows, int tokens, u32 x_at, int stride) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int t = 0; t < COUNT; t++) {
            const u32 row = min(t * 16 + lane % 16, rows - 1);
            w[t] = row * BOX_LINE + (lane / 16 ^ row % 8) * 16;
        }
#pragma unroll
        for (int n = 0; n < NT; n++) x[n] = x_at + min(n * 8 + lane % 8, tokens - 1) * stride + lane / 8 * 16;
    }
    // sum += the products of the box at `box`, 1 KiB aligned, and of tokens `further` bytes on.
    DEVICE void multiply(float (&sum)[COUNT][NT][4], u32 box, u32 further) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 b[NT][4];
#pragma unroll
            for (int n = 0; n < NT; n++) load_matrices(b[n], x[n] + further + half * 64);
#pragma unroll
            for (int t = 0; t < COUNT; t++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    u32 a[4];
                    load_matrices(a, box + (w[t] ^ (half * 2 + i) * 32));
#pragma unroll
                    for (int n = 0; n < NT; n++) mma(sum[t][n], a[0], a[1], a[2], a[3], b[n][2 * i], b[n][2 * i + 1]);
                }
        }
    }
};
