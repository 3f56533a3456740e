// 4-bit weights while a model loads: what a file holds → one canonical stack → tiles (marlin_layout.py draws one), and the
// proof that they are right; or → 16-bit values. Speed is of no account: the bus carries a hundred times less.
#include "common.cuh"

constexpr int WARPS = 8;

// ---- a part as its file holds it ------------------------------------------------------------------------

constexpr int CANONICAL = 0, AWQ = 1, GPTQ = 2, TILES = 3;
constexpr int ROWS = 32, WORDS = 8;  // of a block, one thread for eight codes of a row

struct Part {
    const u32* codes;   // canonical (N, K / 8), AWQ (K, N / 8), GPTQ (K / 8, N), tiles (units down, units across, words)
    const u16* scales;  // canonical (N, groups), AWQ and GPTQ (groups, N) float16; none of tiles
    const void* zeros;  // canonical (N, groups) u16, AWQ and GPTQ (groups, ceil(N / 8)) u32; none of tiles
    int kind, n, k, group, less_one;
    int first, turns;   // its row r stands in row first + r / 8 * 8 * turns + r % 8 of the stack
};
#define PART                                                                                               \
    const u32 *codes, const u16 *scales, const void *zeros, int kind, int n, int k, int group, int less_one, \
        int first, int turns

DEVICE int row_in_stack(const Part& part, int row) { return part.first + row / 8 * 8 * part.turns + row % 8; }

DEVICE int groups_of(const Part& part) { return (part.k + part.group - 1) / part.group; }

// Columns that share a scale in a tile: see tile_group.
DEVICE int group_in_tiles(const Part& part) {
    if (part.group >= part.k || part.group % 128 == 0) return 128;
    return part.group % 64 == 0 ? 64 : 32;
}

// The nibble of an output within its word.
DEVICE int nibble_of(const Part& part, int row) {
    return part.kind == AWQ ? row % 2 * 4 + row % 8 / 2 : row % 8;
}

DEVICE const u32* tile_of(const Part& part, int row, int column) {
    const int across = (part.k + 127) / 128, words = 256 + 16 * (128 / group_in_tiles(part));
    return part.codes + ((i64(row / 64) * across + column / 128) * 4 + row % 64 / 16) * words;
}

// Eight codes of a row from column 8 · word on, the first one lowest.
DEVICE u32 eight_codes(const Part& part, int row, int word) {
    if (part.kind == CANONICAL) return part.codes[i64(row) * (part.k / 8) + word];
    if (part.kind == GPTQ) return part.codes[i64(word) * part.n + row];
    u32 found = 0;
    if (part.kind == AWQ) {
        const int shift = 4 * nibble_of(part, row), width = part.n / 8;
        for (int i = 0; i < 8; i++)
            found |= (part.codes[(i64(word) * 8 + i) * width + row / 8] >> shift & 15) << 4 * i;
        return found;
    }
    const u32* tile = tile_of(part, row, word * 8);
    const int pair = row % 16 / 8 + word % 2 * 2, half = word % 16 / 8, step = word % 8 / 2;
    for (int c = 0; c < 4; c++) {
        const u32 codes = tile[half * 128 + (row % 8 * 4 + c) * 4 + step] >> 4 * pair;
        found |= ((codes & 15) | (codes >> 16 & 15) << 4) << 8 * c;
    }
    return found;
}

struct Scale { u16 scale, zero; };

DEVICE Scale scale_of(const Part& part, int row, int group) {
    if (part.kind == CANONICAL) {
        const i64 at = i64(row) * groups_of(part) + group;
        return {part.scales[at], static_cast<const u16*>(part.zeros)[at]};
    }
    if (part.kind == TILES) {
        const int column = group * part.group, own = column % 128 / group_in_tiles(part);
        const u32 head = tile_of(part, row, column)[256 + own * 16 + row % 8 * 2 + row % 16 / 8];
        return {u16(head & 0xffffu), u16(head >> 16)};
    }
    const u32 word = static_cast<const u32*>(part.zeros)[i64(group) * ((part.n + 7) / 8) + row / 8];
    return {part.scales[i64(group) * part.n + row], u16((word >> 4 * nibble_of(part, row) & 15) + part.less_one)};
}

// The value of one of eight codes, in 16 bits.
DEVICE HALF value_of(const Part& part, int row, int word, u32 codes, int i) {
    const Scale head = scale_of(part, row, (word * 8 + i) / part.group);
    return to_half((float(codes >> 4 * i & 15) - float(head.zero)) * float_of_f16(head.scale));
}

// Row and word of a thread; false past the end.
DEVICE bool own_place(const Part& part, int& row, int& word) {
    row = blockIdx.x * ROWS + threadIdx.x % ROWS, word = blockIdx.y * WORDS + threadIdx.x / ROWS;
    return row < part.n && word < part.k / 8;
}

// A part into the canonical stack. Groups are whole words.
extern "C" __global__ void __launch_bounds__(ROWS * WORDS) stack(
    PART,
    u32* out,           // (rows of the stack, K / 8)
    u16* out_scales,    // (rows of the stack, groups)
    u16* out_zeros) {   // (rows of the stack, groups)
    allow_next();
    wait_for_previous();
    const Part part = {codes, scales, zeros, kind, n, k, group, less_one, first, turns};
    int row, word;
    if (!own_place(part, row, word)) return;
    const i64 to = row_in_stack(part, row);
    out[to * (k / 8) + word] = eight_codes(part, row, word);
    if (word * 8 % group) return;
    const Scale head = scale_of(part, row, word * 8 / group);
    const i64 at = to * groups_of(part) + word * 8 / group;
    out_scales[at] = head.scale, out_zeros[at] = head.zero;
}

// A part into a stack of 16-bit values: (code - zero) · scale, rounded.
extern "C" __global__ void __launch_bounds__(ROWS * WORDS) widen(
    PART,
    HALF* out) {  // (rows of the stack, K)
    allow_next();
    wait_for_previous();
    const Part part = {codes, scales, zeros, kind, n, k, group, less_one, first, turns};
    int row, word;
    if (!own_place(part, row, word)) return;
    const u32 eight = eight_codes(part, row, word);
    HALF* to = out + i64(row_in_stack(part, row)) * k + word * 8;
    for (int i = 0; i < 8; i++) to[i] = value_of(part, row, word, eight, i);
}

// Adds to `wrong` those of some rows of a stack of 16-bit values that are not the part's.
extern "C" __global__ void __launch_bounds__(ROWS * WORDS) compare(
    PART,
    const HALF* values,  // (rows, K): rows top … top + rows - 1 of the stack
    int* wrong,          // (1,)
    int top, int rows) {
    allow_next();
    wait_for_previous();
    const Part part = {codes, scales, zeros, kind, n, k, group, less_one, first, turns};
    int row, word;
    if (!own_place(part, row, word)) return;
    const int at = row_in_stack(part, row) - top;
    if (at < 0 || at >= rows) return;
    const u32 eight = eight_codes(part, row, word);
    int found = 0;
    for (int i = 0; i < 8; i++)
        found += values[i64(at) * k + word * 8 + i] != value_of(part, row, word, eight, i);
    if (found) atomicAdd(wrong, found);
}

// ---- the stack → tiles ----------------------------------------------------------------------------------

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
        words[step] = apart(byte_of(top + g, word)) | apart(byte_of(top + g + 8, word)) << 4 |
                      apart(byte_of(top + g, word + 1)) << 8 | apart(byte_of(top + g + 8, word + 1)) << 12;
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
