// Hopper's copy engine and the barriers in shared memory that its copies complete on; blocks of a cluster share copies.
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
// After all barrier_init of a thread: the other blocks of the cluster and the copy engine see them.
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
// One arrival at the barrier in the same place of block `rank` of the cluster.
DEVICE void barrier_arrive(u32 barrier, u32 rank) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }" :: "r"(barrier), "r"(rank) : "memory");
}

// The map's box at (column, row) to shared memory; what lies outside of the array becomes zeros.
DEVICE void copy_box(u32 to, const TensorMap& map, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
// The same, to every block of the cluster whose bit is in `blocks`, each with its own barrier in the same place.
DEVICE void copy_box_to(u32 to, const TensorMap& map, int column, int row, u32 barrier, u32 blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(u16(blocks)) : "memory");
}
