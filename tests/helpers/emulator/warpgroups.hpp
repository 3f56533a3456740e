// Warpgroups of a block by themselves, for the CPU: named barriers, and wgmma whose series are waited for one by one.
//
// A product happens when its series is waited for and no sooner: until then its sums hold what they held before. It reads its
// registers when it is issued, and shared memory when it happens.
#pragma once

#ifndef TOGETHER
inline void cluster_arrive() {}
inline void cluster_wait() { fail("waits for a cluster, alone"); }
#endif

inline void meeting_wait(int id, int threads) {
    Gathering& meeting = block.meetings[id];
    meeting.size = threads;
    meet(meeting, 0, nullptr, [](void**) {});
}
inline void meeting_arrive(int id, int threads) {
    Gathering& meeting = block.meetings[id];
    if (++meeting.arrived == threads) meeting.arrived = 0, meeting.generation++;
}
template <int COUNT> void take_registers() {}
template <int COUNT> void leave_registers() {}

// ---- wgmma ------------------------------------------------------------------------------------------------

struct Term { float* d; int sums; bool held; u32 p[4]; u64 a, b; bool columns, add; };
struct Series {
    std::vector<Term> open;
    std::vector<std::vector<Term>> closed;
};
OF_BLOCK std::vector<Series> series_of(1024);

inline u32 pack_probabilities(float low, float high) { return pack2(low, high); }
inline u32 pack_saturated(float low, float high) { return pack2(low, high); }
inline u32 multiply_pairs(u32 a, u32 b) {
    u32 out = 0;
    for (int half = 0; half < 2; half++)
        out |= u32(float_to_f16(value_of(HALF(a >> 16 * half)) * value_of(HALF(b >> 16 * half)))) << 16 * half;
    return out;
}
inline void wgmma_end() {
    Series& own = series_of[threadIdx.x];
    own.closed.push_back(std::move(own.open));
    own.open.clear();
}
template <int N> void wgmma_scores(float (&d)[N][4], u64 a, u64 b, u32 add) {
    series_of[threadIdx.x].open.push_back({&d[0][0], N * 4, false, {}, a, b, false, add != 0});
}
template <int N> void wgmma_values(float (&d)[N][4], const u32 (&p)[4], u64 b) {
    series_of[threadIdx.x].open.push_back({&d[0][0], N * 4, true, {p[0], p[1], p[2], p[3]}, 0, b, true, true});
}
// Element (k, n) of an operand whose columns lie together: 64 columns after 64 columns, 8 rows after 8 rows.
inline float column_at(u64 x, int n, int k) {
    const u32 sixty_four = u32(x >> 16 & 0x3fff) * 16, eight = u32(x >> 32 & 0x3fff) * 16;
    const u32 plain = u32(x & 0x3fff) * 16 + n / 64 * sixty_four + k / 8 * eight + k % 8 * 128 + n % 64 * 2;
    HALF bits;
    std::memcpy(&bits, shared_at(plain ^ (plain >> 7 & 7) << 4, 2), 2);
    return value_of(bits);
}
// One product of a warpgroup; `of` gives the term of each of its threads.
template <class Of> void multiply_term(Of of) {
    static thread_local float a[64][16], b[256][16];
    const Term& first = of(0);
    for (int thread = 0; thread < 128; thread++)
        if (of(thread).a != first.a || of(thread).b != first.b) fail("threads of a warpgroup disagree about an operand");
    for (int k = 0; k < 16; k++) {
        for (int n = 0; n < first.sums * 2; n++) b[n][k] = first.columns ? column_at(first.b, n, k) : operand_at(first.b, n, k);
        for (int row = 0; row < 64 && !first.held; row++) a[row][k] = operand_at(first.a, row, k);
    }
    auto row_of = [](int thread, int i) { return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8; };
    for (int thread = 0; thread < 128 && first.held; thread++)
        for (int i = 0; i < 8; i++) a[row_of(thread, i)][thread % 4 * 2 + i % 2 + i / 4 * 8] = half_of(of(thread).p[i / 2], i % 2);
    for (int thread = 0; thread < 128; thread++)
        for (int i = 0; i < first.sums; i++) {
            const float* row = a[row_of(thread, i)];
            const float* column = b[i / 4 * 8 + thread % 4 * 2 + i % 2];
            float sum = first.add ? of(thread).d[i] : 0.0f;
            for (int k = 0; k < 16; k++) sum += row[k] * column[k];
            of(thread).d[i] = sum;
        }
}
template <int LEFT> void wgmma_wait() {
    meet(block.warpgroups[threadIdx.x / 128], threadIdx.x % 128, &series_of[threadIdx.x], [](void** all) {
        auto own = [&](int thread) -> Series& { return *static_cast<Series*>(all[thread]); };
        while (int(own(0).closed.size()) > LEFT) {
            for (size_t i = 0; i < own(0).closed.front().size(); i++)
                multiply_term([&](int thread) -> Term& { return own(thread).closed.front()[i]; });
            for (int thread = 0; thread < 128; thread++) own(thread).closed.erase(own(thread).closed.begin());
        }
    });
}

// The form with the first operand in registers, whose sums are named when all is over.
inline void wgmma_wait() { wgmma_wait<0>(); }
template <int NT> void wgmma(float (&d)[NT][4], const u32 (&a)[4], u64 x, bool add) {
    if (x >> 62 != 1 || (x >> 32 & 0x3fff) != 64 || (x >> 49 & 7)) fail("a descriptor that the model does not know");
    series_of[threadIdx.x].open.push_back({&d[0][0], NT * 4, true, {a[0], a[1], a[2], a[3]}, 0, x, false, add});
}

// The form with both operands in shared memory, whose sums are named when they are waited for.
template <int N> void touch(float (&)[N][4]) {}
template <int N> void wgmma_begin(float (&)[N][4]) {}
template <int LEFT, int N> void wgmma_wait(float (&)[N][4]) { wgmma_wait<LEFT>(); }
template <int N> void wgmma(float (&d)[N][4], u64 a, u64 b, u32 add) { wgmma_scores(d, a, b, add); }
