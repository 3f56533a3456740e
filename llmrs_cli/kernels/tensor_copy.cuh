// Hopper's copy engine and the barriers in shared memory that its copies complete on.
//
// A barrier is in phase 0, 1, 0, … and leaves a phase when all expected arrivals and bytes are there; a thread waits for
// the end of a phase by its parity. TensorMap is made by the host (tensor_map.py) and passed by value.
#pragma once
#include "cluster.cuh"

struct alignas(64) TensorMap {
    u64 words[16];
};

DEVICE void barrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
// After all barrier_init of a thread: the copy engine sees them.
DEVICE void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void barrier_wait(u32 barrier, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}
// One arrival, and `bytes` that copies will bring in this phase.
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Where the next step stands in a ring of STEPS, and the phase of its barriers.
template <int STEPS> struct Slot {
    int at = 0;
    u32 phase = 0;
    DEVICE void next() {
        if (++at == STEPS) at = 0, phase ^= 1;
    }
};

// A map that is needed soon.
DEVICE void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory"); }

// The map's box at (column, row) to shared memory; what lies outside of the array becomes zeros.
DEVICE void copy_box(u32 to, const TensorMap& map, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
// The same to both blocks of a cluster: to the same place of each, and to its barrier that stands where `barrier` does.
DEVICE void copy_box_to_pair(u32 to, const TensorMap& map, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(u16(3)) : "memory");
}

// One arrival at a barrier of any block of the cluster, which cluster_address() has found: a thread is done with what copies
// brought. Nothing that it has written is promised to be seen there; a promise would wait for memory.
DEVICE void barrier_leave_there(u32 there) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
}

// ---- out of shared memory -------------------------------------------------------------------------------
// A thread's copies come in groups; it waits for its own alone.

// What this thread has stored is seen by copies that begin after a barrier.
DEVICE void stores_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Shared memory to the map's box at (column, row), or its float32 values added to what is there; nothing outside of the array.
DEVICE void store_box(const TensorMap& map, int column, int row, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(&map), "r"(column), "r"(row), "r"(from) : "memory");
}
DEVICE void add_box(const TensorMap& map, int column, int row, u32 from) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(&map), "r"(column), "r"(row), "r"(from) : "memory");
}
DEVICE void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Shared memory of all but the last LEFT groups has been read.
template <int LEFT> DEVICE void stores_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(LEFT) : "memory");
}
// Everything has been written.
DEVICE void stores_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
