// Runs CUDA kernels on the CPU, thread by thread: what CUDA gives a kernel, and a model of every instruction that our
// sources write as inline assembly. Slow, and strict where a GPU is lenient: copies land as late as they may.
//
// Each thread of a block is a fibre; blocks run one after the other, or, with TOGETHER, each in a thread of its own. A
// warp-wide instruction waits for its lanes, does the work of all of them, and lets them go on. Fragments follow the PTX
// manual's tables, not our kernels.
#pragma once
#include "standard.hpp"

#define __device__
#define __global__
#define __forceinline__ inline
#ifdef TOGETHER
#define OF_BLOCK static thread_local
#else
#define OF_BLOCK static
#endif
#define __shared__ OF_BLOCK
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __restrict__
#define __grid_constant__
#ifndef BF16
#define BF16 1
#endif
#undef __CUDA_ARCH__
#ifdef ARCH
#define __CUDA_ARCH__ ARCH
#endif
#ifdef HOPPER
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;
typedef long long i64;
typedef u16 HALF;

struct dim3 { int x, y, z; };
struct int2 { int x, y; };
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

OF_BLOCK dim3 threadIdx, blockIdx, blockDim, gridDim;
alignas(1024) OF_BLOCK u8 shared_memory[256 << 10];

// ---- fibres -----------------------------------------------------------------------------------------

[[noreturn]] inline void fail(const char* why) {
    std::fprintf(stderr, "emulated kernel: %s (block %d, thread %d)\n", why, blockIdx.x, threadIdx.x);
    std::abort();
}

constexpr int STACK = 64 << 10;
struct Copy { u8* to; const u8* from; bool valid; };
struct Gathering {  // threads that wait for one another
    int size = 0, arrived = 0;
    unsigned generation = 0;
    void* given[1024];
};
struct Fibre {
    jmp_buf place;  // where it goes on
    bool begun = false;
    dim3 index;
    bool done = false;
    const Gathering* waits = nullptr;  // until it is no longer at `seen`
    unsigned seen = 0;
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
};
struct Block {
    std::vector<Fibre> fibres;
    std::vector<Gathering> warps, warpgroups;
    Gathering all, meetings[16];
    jmp_buf scheduler;
    int current = 0;
    int lookers = 0;  // threads that found nothing in this round
    bool eager = false;  // copies land at once instead of when they are waited for
    void (*body)(void*) = nullptr;
    void* argument = nullptr;
};
OF_BLOCK Block block;

inline Fibre& self() { return block.fibres[block.current]; }
// Jumps between stacks: unlike swapcontext they need no call of the system, which would take most of the time.
inline void yield() {
    if (!_setjmp(self().place)) _longjmp(block.scheduler, 1);
    threadIdx = self().index;
}

// The last of the threads to arrive does `work` with what each has given.
template <class Work> void meet(Gathering& group, int place, void* given, Work work) {
    group.given[place] = given;
    if (++group.arrived == group.size) {
        group.arrived = 0;
        work(group.given);
        group.generation++;
        return;
    }
    self().waits = &group, self().seen = group.generation;
    yield();
}
// For those who wait for something else than a gathering, and look for it themselves.
inline void look_again() {
    block.lookers++;
    yield();
}
inline Gathering& my_warp() { return block.warps[threadIdx.x / 32]; }
inline int my_lane() { return threadIdx.x % 32; }

inline void stores_are_done();
inline void start() {
    threadIdx = self().index;
    block.body(block.argument);
    stores_are_done();
    for (const auto& group : self().groups)
        if (!group.empty()) fail("ends with copies in flight");
    if (!self().open.empty()) fail("ends with copies in flight");
    self().done = true;
    _longjmp(block.scheduler, 1);
}

// Stacks outlive their block, so that memory is asked for once. Each library has its own: within the function they would
// be everybody's, of those too that hold them for a thread.
OF_BLOCK std::vector<std::unique_ptr<u8[]>> stacks;
inline u8* stack_of(int thread) {
    while (int(stacks.size()) <= thread) stacks.emplace_back(new u8[STACK]);
    return stacks[thread].get();
}
inline void begin(int thread) {
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack_of(thread);
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, start, 0);
    setcontext(&context);
}
// Lets a thread run until it waits or ends.
inline void resume(int thread) {
    Fibre& fibre = block.fibres[thread];
    block.current = thread;
    if (_setjmp(block.scheduler)) return;
    if (fibre.begun) _longjmp(fibre.place, 1);
    fibre.begun = true;
    begin(thread);
}

// 0 … count - 1 in an order that depends on the seed.
inline std::vector<int> shuffled(int count, u64& seed) {
    std::vector<int> order(count);
    for (int i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const int j = int((seed >> 33) % u64(i + 1));
        order[i] = order[j], order[j] = i;
    }
    return order;
}

inline void run_block(int threads, u64& seed) {
    block.fibres = std::vector<Fibre>(threads);
    block.warps = std::vector<Gathering>(threads / 32);
    block.warpgroups = std::vector<Gathering>((threads + 127) / 128);
    for (auto& warp : block.warps) warp.size = 32;
    for (auto& group : block.warpgroups) group.size = 128;
    block.all = Gathering();
    for (auto& meeting : block.meetings) meeting = Gathering();
    block.all.size = threads;
    std::memset(shared_memory, 0xff, sizeof shared_memory);  // NaN in every type
    const std::vector<int> order = shuffled(threads, seed);
    for (int i = 0; i < threads; i++) block.fibres[i].index = {i, 0, 0};
    block.eager = seed >> 40 & 1;
    int living = threads;
    for (int moved = 1; living;) {
        if (!moved) fail("its threads wait for each other");
        moved = block.lookers = 0;
        for (int i : order) {
            Fibre& fibre = block.fibres[i];
            if (fibre.done || (fibre.waits && fibre.waits->generation == fibre.seen)) continue;
            fibre.waits = nullptr;
            resume(i);
            living -= fibre.done;
            moved++;
        }
        if (block.lookers == moved) std::this_thread::yield();  // what they look for, another block does
    }
}

#ifdef TOGETHER
inline void forget_clusters();
inline void leave_cluster();
#else
inline void leave_cluster() {}
#endif
template <class... P, size_t... I>
void call(void (*kernel)(P...), const u64* slots, std::index_sequence<I...>) {
    std::tuple<std::decay_t<P>...> values;
    auto take = [&](auto& value) {
        std::memcpy(&value, slots, sizeof value);
        slots += (sizeof value + 7) / 8;
    };
    (take(std::get<I>(values)), ...);
    kernel(std::get<I>(values)...);
}
template <class... P>
void launch(void (*kernel)(P...), const int* grid, int threads, const u64* slots, unsigned seed) {
    auto body = [&] { call(kernel, slots, std::index_sequence_for<P...>()); };
    auto run = [&](int i, u64 state) {
        block.body = [](void* held) { (*static_cast<decltype(body)*>(held))(); };
        block.argument = &body;
        gridDim = {grid[0], grid[1], grid[2]};
        blockDim = {threads, 1, 1};
        blockIdx = {i % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]};
        run_block(threads, state);
        leave_cluster();
        return state;
    };
    u64 state = seed;
    const std::vector<int> order = shuffled(grid[0] * grid[1] * grid[2], state);
#ifdef TOGETHER
    std::vector<std::thread> blocks;
    forget_clusters();
    for (int i : order) blocks.emplace_back(run, i, state + i);
    for (auto& one : blocks) one.join();
#else
    for (int i : order) state = run(i, state);
#endif
}
static int cluster_size = 1;  // blocks that share what they have in shared memory
#define KERNEL_ENTRY(NAME, CLUSTER)                                                                          \
    extern "C" void run_##NAME(const int* grid, int threads, const u64* slots, unsigned seed) {             \
        cluster_size = CLUSTER;                                                                              \
        launch(NAME, grid, threads, slots, seed);                                                            \
    }

// ---- what CUDA has built in ---------------------------------------------------------------------------

template <class T> T max(T a, T b) { return a < b ? b : a; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
inline float __uint_as_float(u32 bits) { float f; std::memcpy(&f, &bits, 4); return f; }
inline u32 __float_as_uint(float f) { u32 bits; std::memcpy(&bits, &f, 4); return bits; }
inline float __int_as_float(int bits) { return __uint_as_float(u32(bits)); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(u32 x) { return float(x); }
inline double __ull2double_rn(u64 x) { return double(x); }
inline u32 __float2uint_rn(float x) {
    return x >= 0x1p32f ? ~0u : x > 0.0f ? u32(std::nearbyint(double(x))) : 0;
}
inline u32 __umulhi(u32 a, u32 b) { return u32(u64(a) * b >> 32); }
inline int __ffs(u32 bits) { return __builtin_ffs(int(bits)); }
inline float max_nan(float a, float b) { return a != a || b != b ? NAN : max(a, b); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline u32 __funnelshift_r(u32 low, u32 high, u32 by) {
    return u32(((u64(high) << 32) | low) >> (by & 31));
}
inline void __syncthreads() { meet(block.all, threadIdx.x, nullptr, [](void**) {}); }
inline void __syncwarp() { meet(my_warp(), my_lane(), nullptr, [](void**) {}); }
inline void __threadfence() {}
template <class T> T atomicAdd(T* at, T by) { return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST); }
template <class T> T atomicMax(T* at, T other) {
    T old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    while (old < other && !__atomic_compare_exchange_n(at, &old, other, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return old;
}
inline u32 load_acquire(const u32* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
inline void __nanosleep(unsigned) { std::this_thread::yield(); }
inline u32 atomicOr(u32* at, u32 bits) { const u32 old = *at; *at |= bits; return old; }
inline u32 atomicCAS(u32* at, u32 wanted, u32 value) { const u32 old = *at; if (old == wanted) *at = value; return old; }
inline int __syncthreads_or(int mine) {
    struct Given { int mine; } given{mine};
    meet(block.all, threadIdx.x, &given, [](void** all) {
        int any = 0;
        for (int i = 0; i < block.all.size; i++) any |= static_cast<Given*>(all[i])->mine != 0;
        for (int i = 0; i < block.all.size; i++) static_cast<Given*>(all[i])->mine = any;
    });
    return given.mine;
}
template <class T> T __ldcg(const T* p) { return *p; }
inline int __popc(u32 bits) { return __builtin_popcount(bits); }
inline float exp2_fast(float x) { return std::exp2(x); }
template <class T> T __shfl_sync(u32, T value, int from) {
    struct Given { T value; int from; T found; } mine{value, from, T()};
    meet(my_warp(), my_lane(), &mine, [](void** all) {
        for (int i = 0; i < 32; i++) {
            auto* own = static_cast<Given*>(all[i]);
            own->found = static_cast<Given*>(all[own->from & 31])->value;
        }
    });
    return mine.found;
}
inline u32 __ballot_sync(u32, bool mine) {
    struct Given { bool mine; u32 all; } given{mine, 0};
    meet(my_warp(), my_lane(), &given, [](void** all) {
        u32 bits = 0;
        for (int i = 0; i < 32; i++) bits |= u32(static_cast<Given*>(all[i])->mine) << i;
        for (int i = 0; i < 32; i++) static_cast<Given*>(all[i])->all = bits;
    });
    return given.all;
}
// Each of a group gives a value and gets what all of theirs come to.
template <class T, class Fold> T together(Gathering& group, int place, T mine, Fold fold) {
    struct Given { T value, all; Fold* fold; int size; } given{mine, mine, &fold, group.size};
    meet(group, place, &given, [](void** all) {
        auto of = [&](int i) { return static_cast<Given*>(all[i]); };
        T result = of(0)->value;
        for (int i = 1; i < of(0)->size; i++) result = (*of(0)->fold)(result, of(i)->value);
        for (int i = 0; i < of(0)->size; i++) of(i)->all = result;
    });
    return given.all;
}
inline u32 __reduce_max_sync(u32, u32 mine) { return together(my_warp(), my_lane(), mine, max<u32>); }
inline u32 __reduce_min_sync(u32, u32 mine) { return together(my_warp(), my_lane(), mine, min<u32>); }
inline int __syncthreads_count(int mine) {
    return together(block.all, threadIdx.x, int(mine != 0), [](int a, int b) { return a + b; });
}
inline bool __any_sync(u32 mask, bool mine) { return __ballot_sync(mask, mine) != 0; }
template <class T> T __shfl_xor_sync(u32 mask, T value, int by) { return __shfl_sync(mask, value, my_lane() ^ by); }

// ---- barriers that copies complete on ---------------------------------------------------------------------

// A copy of the engine lands as late as it may: when somebody waits for it. What it overwrites is lost at once.
struct BulkCopy {
    u8* to;
    std::vector<u8> bytes;
};
struct Barrier {
    int expected = 0, pending = 0;
    i64 bytes = 0;
    u32 phase = 0;
    std::vector<BulkCopy> copies;
    void settle() {
        if (pending < 0) fail("more arrivals at a barrier than it expects");
        if (pending == 0 && bytes == 0) phase++, pending = expected;
    }
};
inline u8* shared_at(u32 address, u32 size);
typedef std::map<u32, Barrier> Barriers;
OF_BLOCK Barriers barriers_of_block;
inline std::mutex barriers_mutex;  // of all blocks

inline Barrier& barrier_in(Barriers& all, u32 address) {
    const auto found = all.find(address);
    if (found == all.end()) fail("a barrier that nobody has made");
    return found->second;
}
inline void barrier_init(u32 address, int arrivals) {
    if (address % 8) fail("misaligned barrier");
    std::lock_guard held(barriers_mutex);
    barriers_of_block[address] = Barrier{arrivals, arrivals};
}
inline void barriers_ready() {}
template <class Map> void prefetch_map(const Map&) {}
inline void arrive_at(Barriers& all, u32 address, i64 bytes) {
    std::lock_guard held(barriers_mutex);
    Barrier& barrier = barrier_in(all, address);
    barrier.bytes += bytes, barrier.pending--;
    barrier.settle();
}
inline void barrier_expect(u32 address, u32 bytes) { arrive_at(barriers_of_block, address, bytes); }
inline void barrier_arrive(u32 address) { arrive_at(barriers_of_block, address, 0); }
inline void barrier_wait(u32 address, u32 parity) {
    const auto began = std::chrono::steady_clock::now();
    for (;;) {
        {
            std::lock_guard held(barriers_mutex);
            Barrier& barrier = barrier_in(barriers_of_block, address);
            if ((barrier.phase & 1) != parity) return;
            if (!barrier.copies.empty()) {
                const BulkCopy copy = barrier.copies.back();
                barrier.copies.pop_back();
                std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
                barrier.bytes -= i64(copy.bytes.size());
                barrier.settle();
                continue;
            }
        }
        if (std::chrono::steady_clock::now() - began > std::chrono::seconds(20)) fail("nobody comes to a barrier");
        look_again();
    }
}
inline void bulk_copy(u32 to, std::vector<u8> bytes, u32 barrier) {
    if (to % 16 || bytes.size() % 16) fail("misaligned copy");
    u8* target = shared_at(to, u32(bytes.size()));
    std::memset(target, 0xff, bytes.size());
    std::lock_guard held(barriers_mutex);
    barrier_in(barriers_of_block, barrier).copies.push_back({target, std::move(bytes)});
}
inline void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    if (reinterpret_cast<uintptr_t>(from) % 16) fail("misaligned global address");
    const u8* first = static_cast<const u8*>(from);
    bulk_copy(to, std::vector<u8>(first, first + bytes), barrier);
}
// Maps are as `launches.tensor_map` makes them: address, rows and columns of a matrix, rows of a box.
template <class Map> std::vector<u8> box_bytes(u32 to, const Map& map, int column, int row) {
    const auto* matrix = reinterpret_cast<const HALF*>(map.words[0]);
    const i64 rows = i64(map.words[1]), columns = i64(map.words[2]), box = i64(map.words[3]);
    if (to % 1024) fail("a swizzled box that begins within its pattern");
    std::vector<u8> bytes(box * 128);
    for (i64 r = 0; r < box; r++)
        for (i64 c = 0; c < 64; c++) {
            const bool inside = row + r >= 0 && row + r < rows && column + c < columns;
            const HALF value = inside ? matrix[(row + r) * columns + column + c] : 0;
            std::memcpy(&bytes[r * 128 + (c / 8 ^ r % 8) * 16 + c % 8 * 2], &value, 2);
        }
    return bytes;
}
template <class Map> void copy_box(u32 to, const Map& map, int column, int row, u32 barrier) {
    bulk_copy(to, box_bytes(to, map, column, row), barrier);
}

#ifdef TOGETHER
// ---- clusters of blocks ---------------------------------------------------------------------------------

struct Cluster {
    std::mutex mutex;
    std::condition_variable changed;
    int arrived = 0, begun = 0;
    unsigned generation = 0;
    u8* shared[8] = {};
    Barriers* barriers[8] = {};
};
inline std::map<int, Cluster> clusters;
inline std::mutex clusters_mutex;
inline void forget_clusters() { clusters.clear(); }
inline Cluster& my_cluster() {
    std::lock_guard held(clusters_mutex);
    return clusters[((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) / cluster_size];
}
// Barriers of a block of this one's cluster, which must not have ended.
inline Barriers& barriers_there(u32 rank) {
    Barriers* found = my_cluster().barriers[rank];
    if (!found) fail("sends to a block that has ended");
    return *found;
}
inline void leave_cluster() {
    Cluster& cluster = my_cluster();
    std::lock_guard held(barriers_mutex);
    cluster.barriers[blockIdx.x % cluster_size] = nullptr;
}
// The last thread of each block waits for the other blocks, and the others for it.
inline void cluster_arrive() {}
inline void cluster_wait() {
    meet(block.all, threadIdx.x, nullptr, [](void**) {
        Cluster& cluster = my_cluster();
        std::unique_lock held(cluster.mutex);
        cluster.shared[blockIdx.x % cluster_size] = shared_memory;
        cluster.barriers[blockIdx.x % cluster_size] = &barriers_of_block;
        if (++cluster.arrived == cluster_size) {
            cluster.arrived = 0, cluster.generation++;
            cluster.changed.notify_all();
        } else {
            const unsigned seen = cluster.generation;
            cluster.changed.wait(held, [&] { return cluster.generation != seen; });
        }
    });
}
// Here a block's threads need not wait for one another.
inline void cluster_begin() {
    Cluster& cluster = my_cluster();
    std::lock_guard held(cluster.mutex);
    cluster.shared[blockIdx.x % cluster_size] = shared_memory;
    cluster.barriers[blockIdx.x % cluster_size] = &barriers_of_block;
    cluster.begun++;
}
inline void cluster_begun() {
    Cluster& cluster = my_cluster();
    for (;;) {
        {
            std::lock_guard held(cluster.mutex);
            if (cluster.begun >= cluster_size * blockDim.x) return;
        }
        look_again();
    }
}
inline u32 cluster_address(u32 shared, u32 rank) { return shared | rank << 24; }
inline float4 load_cluster(u32 address) {
    float4 v;
    std::memcpy(&v, my_cluster().shared[address >> 24] + (address & 0xffffff), sizeof v);
    return v;
}
inline void barrier_arrive_there(u32 address) {
    arrive_at(barriers_there(address >> 24), address & 0xffffff, 0);
}
inline void store_there(u32 address, float4 v, u32 barrier) {
    const Cluster& cluster = my_cluster();
    const u8* bytes = reinterpret_cast<const u8*>(&v);
    u8* target = cluster.shared[address >> 24] + (address & 0xffffff);
    std::lock_guard held(barriers_mutex);
    std::memset(target, 0xff, sizeof v);
    barrier_in(barriers_there(barrier >> 24), barrier & 0xffffff).copies.push_back({target, {bytes, bytes + sizeof v}});
}
inline void barrier_wait_for_cluster(u32 address, u32 parity) { barrier_wait(address, parity); }
inline void barrier_leave_there(u32 address) { barrier_arrive_there(address); }
template <class Map> void copy_box_to_pair(u32 to, const Map& map, int column, int row, u32 barrier) {
    const std::vector<u8> bytes = box_bytes(to, map, column, row);
    shared_at(to, u32(bytes.size()));
    const Cluster& cluster = my_cluster();
    std::lock_guard held(barriers_mutex);
    for (int rank = 0; rank < 2; rank++) {
        std::memset(cluster.shared[rank] + to, 0xff, bytes.size());
        barrier_in(barriers_there(rank), barrier).copies.push_back({cluster.shared[rank] + to, bytes});
    }
}
#endif

// ---- 16-bit numbers -------------------------------------------------------------------------------------

inline float float_of_f16(u16 bits) {
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return float(value);
}
inline u16 float_to_f16(float f) {
    const _Float16 value = _Float16(f);
    u16 bits;
    std::memcpy(&bits, &value, 2);
    return bits;
}
inline u16 float_to_bf16(float f) {
    const u32 bits = __float_as_uint(f);
    return u16(f != f ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float value_of(HALF bits) { return BF16 ? __uint_as_float(u32(bits) << 16) : float_of_f16(bits); }
inline u16 narrow(float f) {
    return BF16 ? float_to_bf16(f) : float_to_f16(f != f ? f : min(max(f, -65504.0f), 65504.0f));
}
inline u32 pack2(float low, float high) { return narrow(low) | u32(narrow(high)) << 16; }
inline u32 mask_or(u32 bits, u32 mask, u32 also) { return (bits & mask) | also; }
// Both halves of a pair plus those of another: exact in the tests' small integers, so any rounding shows.
inline u32 add_pairs(u32 a, u32 b) {
    u32 out = 0;
    for (int half = 0; half < 2; half++) {
        const float sum = value_of(HALF(a >> 16 * half)) + value_of(HALF(b >> 16 * half));
        const u16 bits = BF16 ? float_to_bf16(sum) : float_to_f16(sum);
        if (value_of(bits) != sum) fail("a code less its zero is not exact");
        out |= u32(bits) << 16 * half;
    }
    return out;
}


// ---- memory ---------------------------------------------------------------------------------------------

inline void wait_for_previous() {}
inline void allow_next() {}

inline u64 __cvta_generic_to_shared(const void* p) { return static_cast<const u8*>(p) - shared_memory; }
inline u8* shared_at(u32 address, u32 size) {
    if (address + size > sizeof shared_memory) fail("reads past shared memory");
    if (address % min(size, 16u)) fail("misaligned shared address");
    return shared_memory + address;
}
inline void prefetch(const void*) {}
inline void touch(const float* p) { volatile float v = *p; (void)v; }
inline uint4 load_stream(const void* p) { uint4 v; std::memcpy(&v, p, 16); return v; }
inline void land(const Copy& copy) {
    if (copy.valid) std::memcpy(copy.to, copy.from, 16);
    else std::memset(copy.to, 0, 16);
}
inline void copy_async(u32 to, const void* from, bool valid) {
    if (valid && reinterpret_cast<uintptr_t>(from) % 16) fail("misaligned global address");
    const Copy copy{shared_at(to, 16), static_cast<const u8*>(from), valid};
    if (block.eager) land(copy);
    else std::memset(copy.to, 0xff, 16);
    self().open.push_back(copy);
}
inline void copy_commit() {
    self().groups.push_back(std::move(self().open));
    self().open.clear();
}
template <int N> void copy_wait() {
    for (auto& groups = self().groups; groups.size() > N; groups.erase(groups.begin()))
        for (const Copy& copy : groups.front()) land(copy);
}

// ---- tensor cores -----------------------------------------------------------------------------------------

inline float half_of(u32 pair, int which) { return value_of(HALF(pair >> 16 * which)); }

struct MmaGiven { float* d; u32 a[4], b[2]; };
inline void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    MmaGiven mine{d, {a0, a1, a2, a3}, {b0, b1}};
    meet(my_warp(), my_lane(), &mine, [](void** all) {
        float a[16][16], b[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const auto& own = *static_cast<MmaGiven*>(all[lane]);
            for (int i = 0; i < 8; i++)
                a[lane / 4 + (i / 2 % 2) * 8][lane % 4 * 2 + i % 2 + (i / 4) * 8] = half_of(own.a[i / 2], i % 2);
            for (int i = 0; i < 4; i++) b[lane % 4 * 2 + i % 2 + (i / 2) * 8][lane / 4] = half_of(own.b[i / 2], i % 2);
        }
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                float& d = static_cast<MmaGiven*>(all[lane])->d[i];
                for (int k = 0; k < 16; k++) d += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
            }
    });
}

inline u32 transposed(u32 pair) {
    struct Given { u32 pair, out; } mine{pair, 0};
    meet(my_warp(), my_lane(), &mine, [](void** all) {
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 2; i++) {
                const auto* from = static_cast<Given*>(all[(lane % 4 * 2 + i) * 4 + lane / 8]);
                static_cast<Given*>(all[lane])->out |= (from->pair >> lane / 4 % 2 * 16 & 0xffff) << 16 * i;
            }
    });
    return mine.out;
}
struct MatrixGiven { u32 address; u32* r; };
inline void load_matrices(u32 (&r)[4], u32 address) {
    MatrixGiven mine{address, r};
    meet(my_warp(), my_lane(), &mine, [](void** all) {
        for (int lane = 0; lane < 32; lane++)
            for (int matrix = 0; matrix < 4; matrix++) {
                const u32 row = static_cast<MatrixGiven*>(all[matrix * 8 + lane / 4])->address;
                std::memcpy(static_cast<MatrixGiven*>(all[lane])->r + matrix, shared_at(row, 16) + lane % 4 * 4, 4);
            }
    });
}
inline void load_matrices_transposed(u32 (&r)[4], u32 address) {
    MatrixGiven mine{address, r};
    meet(my_warp(), my_lane(), &mine, [](void** all) {
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 8; i++) {
                const u32 row = static_cast<MatrixGiven*>(all[i / 2 * 8 + lane % 4 * 2 + i % 2])->address;
                auto* pair = reinterpret_cast<u8*>(static_cast<MatrixGiven*>(all[lane])->r + i / 2);
                std::memcpy(pair + i % 2 * 2, shared_at(row, 16) + lane / 4 * 2, 2);
            }
    });
}

inline void fence_for_wgmma() {}
inline void wgmma_begin() {}
template <int NT> void wgmma_results(float (&)[NT][4]) {}
// Element (n, k) of the 16 columns at the descriptor: 128 bytes a row, pieces of 16 bytes swizzled by address bits 7–9.
inline float operand_at(u64 x, int n, int k) {
    const u32 plain = u32(x & 0x3fff) * 16 + n / 8 * 1024 + n % 8 * 128 + k * 2;
    const u32 address = plain ^ (plain >> 7 & 7) << 4;
    HALF bits;
    std::memcpy(&bits, shared_at(address, 2), 2);
    return value_of(bits);
}

#include "stores.hpp"
#include "warpgroups.hpp"
