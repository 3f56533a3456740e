// What follows the sums of linear_many: results go to shared memory, and the copy engine takes them away.
//
// Each warp has 16 tokens of a tile and ROOM bytes of its own, a ring of boxes of 16 tokens and LINE bytes of each; it waits
// for nobody but the copies of its own older boxes. EPILOGUE is one of linear.cuh: STORE, SILU, or ADD, where the copy
// engine adds to the residual, each value once, so that nobody reads it.
//
// Sums come as wgmma leaves them: of tokens g and g + 8 of a warp's 16, and of rows 8j + 2c and the next, where g = lane / 4
// and c = lane % 4. In a box the 16-byte pieces of a line are swizzled as the copy engine does for lines of LINE bytes.
#pragma once
#include "linear.cuh"
#include "tensor_copy.cuh"

constexpr int VALUE = EPILOGUE == ADD ? 4 : 2;     // bytes
constexpr int SOURCES = EPILOGUE == SILU ? 2 : 1;  // rows of W of which a value is made
constexpr int LEAVING = ROWS / SOURCES;            // values of a token that a tile leaves
// Long lines; the last box has some columns of the one before if they are no multiple of its own. What is added is added once.
constexpr int LINE = EPILOGUE == ADD ? (LEAVING % 32 == 0 ? 128 : 64) : LEAVING >= 64 ? 128 : 64;
constexpr int WIDTH = LINE / VALUE, BOXES = (LEAVING + WIDTH - 1) / WIDTH, EIGHTS = WIDTH / 8;
constexpr int BOX_BYTES = 16 * LINE, BUFFERS = ROOM / BOX_BYTES;
// Eights of a box go in pairs: neighbours; or those that half of the lanes exchange, where lines of float32 would else meet in
// the same banks. The bias of LOADED pairs is read at once, as much as registers hold beside the sums.
constexpr int APART = EPILOGUE == ADD ? EIGHTS / 2 : 1, LOADED = EIGHTS / 2 > DEEP ? EIGHTS / 2 / DEEP : 1;
static_assert(LEAVING >= WIDTH && BUFFERS >= 1, "results fill no box, or find no room");

// Of a box: one side of a pair.
DEVICE constexpr int eight_of(int pair, int side) { return pair / APART * 2 * APART + pair % APART + side * APART; }

DEVICE u32 swizzled(u32 at) { return at ^ (at / 128 % (LINE / 16)) * 16; }

// 8 × 8 matrices of 16-bit values to shared memory: lane l gives the address of row l % 8 of matrix l / 8, and of each
// matrix the values of row l / 4 and columns 2 (l % 4) and the next.
DEVICE void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

DEVICE float gated(float gate, float up) {
    constexpr float LOG2_E = 1.44269504f;
    return __fdividef(gate, 1.0f + exp2_fast(gate * -LOG2_E)) * up * HEADROOM;
}

struct Writer {
    const TensorMap& out;
    float alpha;
    const float* bias;
    int m, n;
    u8* room;  // this warp's
    int next = 0;  // box: where it stands
    DEVICE Writer(const TensorMap& out, float alpha, const float* bias, int m, int n, u8* room)
        : out(out), alpha(alpha), bias(bias), m(m), n(n), room(room) {}

    // What is added to the sums of eight rows of W, of which this thread has two.
    DEVICE float2 bias_of(int row) const {
        row += threadIdx.x % 4 * 2;
        if (bias == nullptr || row >= n) return make_float2(0.0f, 0.0f);
        return *reinterpret_cast<const float2*>(bias + row);
    }
    // Eight columns of those that a tile leaves, of which this thread has two, of two tokens.
    DEVICE void values(const float (&d)[ROWS / 8][4], const float2 (&added)[SOURCES], int eight, float2 (&v)[2]) const {
        auto scaled = [&](int source, int h) {
            const float(&sums)[4] = d[eight * SOURCES + source];
            return make_float2(sums[h * 2] * alpha + added[source].x, sums[h * 2 + 1] * alpha + added[source].y);
        };
#pragma unroll
        for (int h = 0; h < 2; h++) {
            v[h] = scaled(0, h);
            if constexpr (EPILOGUE == SILU) {
                const float2 up = scaled(1, h);
                v[h] = make_float2(gated(v[h].x, up.x), gated(v[h].y, up.y));
            }
        }
    }
    // Two eights, the e-th of a box and the one APART from it, into the box that stands at `next`. Pieces of a line are told
    // apart by an exclusive or.
    DEVICE void fill(const float2 (&v)[2][2], int e) const {
        const int lane = threadIdx.x % 32, g = lane / 4;
        if constexpr (EPILOGUE == ADD) {
            const bool turned = g * LINE / 128 % 2;
            const u32 own = next + (swizzled(g * LINE + lane % 4 * 8) ^ (turned ? APART * 32 : 0));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                u8* to = room + h * 8 * LINE;
                *reinterpret_cast<float2*>(to + (own ^ e * 32)) = turned ? v[1][h] : v[0][h];
                *reinterpret_cast<float2*>(to + (own ^ (e + APART) * 32)) = turned ? v[0][h] : v[1][h];
            }
        } else {
            store_matrices(shared_address(room) + (next + swizzled(lane % 16 * LINE + lane / 16 * 16) ^ e * 16),
                           pack2(v[0][0].x, v[0][0].y), pack2(v[0][1].x, v[0][1].y),
                           pack2(v[1][0].x, v[1][0].y), pack2(v[1][1].x, v[1][1].y));
        }
    }
    // Of 16 tokens and the rows of a tile.
    DEVICE void write(const float (&d)[ROWS / 8][4], int token, int row) {
        if (token >= m) return;
        const bool leads = threadIdx.x % 32 == 0;
#pragma unroll
        for (int b = 0; b < BOXES; b++) {
            const int first = min(b * EIGHTS, LEAVING / 8 - EIGHTS), column = row / SOURCES + first * 8;
#pragma unroll
            for (int from = 0; from < EIGHTS / 2; from += LOADED) {
                float2 added[LOADED][2][SOURCES];
#pragma unroll
                for (int i = 0; i < LOADED * 2 * SOURCES; i++) {
                    const int pair = i / SOURCES / 2, side = i / SOURCES % 2, source = i % SOURCES;
                    added[pair][side][source] = bias_of(row + ((first + eight_of(from + pair, side)) * SOURCES + source) * 8);
                }
                if (from == 0) {
                    if (leads) stores_wait_read<BUFFERS - 1>();
                    __syncwarp();
                }
#pragma unroll
                for (int i = 0; i < LOADED; i++) {
                    float2 v[2][2];
#pragma unroll
                    for (int side = 0; side < 2; side++)
                        values(d, added[i][side], first + eight_of(from + i, side), v[side]);
                    fill(v, eight_of(from + i, 0));
                }
            }
            stores_ready();
            __syncwarp();
            if (leads && column < n / SOURCES) {
                if constexpr (EPILOGUE == ADD) add_box(out, column, token, shared_address(room) + next);
                else store_box(out, column, token, shared_address(room) + next);
            }
            if (leads) stores_commit();
            next = next + BOX_BYTES == BUFFERS * BOX_BYTES ? 0 : next + BOX_BYTES;
        }
    }
    DEVICE void finish() const {
        if (threadIdx.x % 32 == 0) stores_wait();
        __syncwarp();
    }
};
