// Canonical 4-bit codes → tiles while a model loads (marlin_layout.py draws one), and the proof that they are right.
#include "common.cuh"

constexpr int WARPS = 8;

// The two codes of a byte, at bits 0 and 16.
DEVICE u32 apart(u32 byte) { return (byte & 15) | (byte >> 4 & 15) << 16; }

// One warp a tile.
extern "C" __global__ void __launch_bounds__(WARPS * 32) repack(
    const u32* codes,    // (N, K / 8) words of eight codes
    const u16* scales,   // (N, groups) float16
    const u16* zeros,    // (N, groups)
    u32* packed,         // (units down, units across, words of a unit)
    int n, int k, int across, int groups,
    int group,           // columns that share a scale
    int own,             // the same in tiles
    int tiles) {
    allow_next();
    wait_for_previous();
    const int index = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    if (index >= tiles) return;
    const int unit = index / 4, right = unit % across, top = unit / across * 64 + index % 4 * 16, width = k / 8;
    u32* tile = packed + i64(index) * (256 + 16 * (128 / own));
    auto byte_of = [&](int row, int word) {
        return row < n && word < width ? codes[i64(row) * width + word] >> 8 * c & 255 : 0;
    };
    u32 words[8];
#pragma unroll
    for (int step = 0; step < 8; step++) {
        const int word = right * 16 + step * 2;
        const u32 plain = apart(byte_of(top + g, word)) | apart(byte_of(top + g + 8, word)) << 4 |
                          apart(byte_of(top + g, word + 1)) << 8 | apart(byte_of(top + g + 8, word + 1)) << 12;
        words[step] = __funnelshift_r(plain, plain, 32 - 6);
    }
    uint4* to = reinterpret_cast<uint4*>(tile);
    to[lane] = make_uint4(words[0], words[1], words[2], words[3]);
    to[32 + lane] = make_uint4(words[4], words[5], words[6], words[7]);
    if (lane >= 16) return;
    const int row = top + lane / 2 + lane % 2 * 8;
    for (int i = 0; i < 128 / own; i++) {
        const int column = right * 128 + i * own;
        const i64 at = i64(row) * groups + column / group;
        tile[256 + i * 16 + lane] = row < n && column < k ? scales[at] | u32(zeros[at]) << 16 : 0;
    }
}

// Adds to `wrong` the values of a 16-bit matrix that are not (code - zero) · scale, rounded. Eight a thread.
extern "C" __global__ void __launch_bounds__(256) compare(
    const u32* codes, const u16* scales, const u16* zeros,  // of these rows, as above
    const u16* values,                                      // (rows, K)
    int* wrong,                                             // (1,)
    int rows, int k, int groups, int group) {
    allow_next();
    wait_for_previous();
    const i64 at = i64(blockIdx.x) * 256 + threadIdx.x;
    const int width = k / 8;
    if (at >= i64(rows) * width) return;
    const i64 row = at / width;
    int found = 0;
    for (int i = 0; i < 8; i++) {
        const i64 head = row * groups + (at % width * 8 + i) / group;
        const float difference = float(codes[at] >> 4 * i & 15) - float(zeros[head]);
        found += values[at * 8 + i] != to_half(difference * float_of_f16(scales[head]));
    }
    if (found) atomicAdd(wrong, found);
}
