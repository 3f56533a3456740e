// 4-bit units → a 16-bit matrix, rounded as (code - zero) · scale in float32. For products of many tokens: a slab of
// W that stays in the L2 cache until cuBLASLt has read it. One warp a tile.
#include "packed4.cuh"

constexpr int WARPS = 8;
constexpr int STRIDE = TILE_COLUMNS + 8;  // of a tile's rows in shared memory: no bank conflicts

extern "C" __global__ void __launch_bounds__(WARPS * 32) dequantise(
    const u8* packed,         // (units down, units across) of the whole matrix
    HALF* out,                // (rows, columns): a part of it
    int first, int past,      // units down in that part
    int left, int width,      // units across: the first, and how many
    int across,               // of the whole matrix
    int rows, int columns) {  // columns a multiple of 8
    __shared__ __align__(16) HALF tiles[WARPS][TILE_ROWS * STRIDE];
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
    const int index = blockIdx.x * WARPS + warp, unit = index / UNIT_TILES;
    const int down = unit / width, right = unit % width;
    const bool live = first + down < past;
    HALF* tile = tiles[warp];
    allow_next();
    if (live) {
        const i64 at = i64(first + down) * across + left + right;
        const u8* from = packed + at * UNIT_BYTES + index % UNIT_TILES * TILE_BYTES;
        const uint4 codes[2] = {load_stream(from + lane * 16), load_stream(from + CODE_BYTES / 2 + lane * 16)};
        Head head;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step % GROUP_STEPS == 0) head = read_head(from, step / GROUP_STEPS, g);
            u32 a[4];
            decode(word_of(codes[step / 4], step), head, a);
#pragma unroll
            for (int pair = 0; pair < 4; pair++) {
                const float2 w = unpack2(a[pair]);
                const float scale = head.scale[pair % 2];
                const int row = g + pair % 2 * 8, column = step * 16 + 2 * c + pair / 2 * 8;
                *reinterpret_cast<u32*>(tile + row * STRIDE + column) = pack2(w.x * scale, w.y * scale);
            }
        }
    }
    __syncwarp();
    wait_for_previous();
    if (!live) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int r = i * 2 + lane / 16, row = down * UNIT_ROWS + index % UNIT_TILES * TILE_ROWS + r;
        const int column = right * TILE_COLUMNS + lane % 16 * 8;
        if (row < rows && column < columns)
            *reinterpret_cast<uint4*>(out + i64(row) * columns + column) =
                load_uint4(tile + r * STRIDE + lane % 16 * 8);
    }
}
