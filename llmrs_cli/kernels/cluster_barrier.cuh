// Copies of plain bytes by Hopper's copy engine, and the barriers of tensor_copy.cuh between blocks of a cluster.
#pragma once
#include "tensor_copy.cuh"

// `bytes` from global to shared memory; like both addresses a multiple of 16.
DEVICE void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// This block has made its barriers; all have, after cluster_begun(). Nothing else is promised of what they wrote.
DEVICE void cluster_begin() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_begun() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// One arrival at a barrier of any block, which cluster_address() has found; who waits there for the cluster sees what this
// thread sees.
DEVICE void barrier_arrive_there(u32 there) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
}
DEVICE void barrier_wait_for_cluster(u32 barrier, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}
// Four sums to another block's shared memory, and their 16 bytes to a barrier there.
DEVICE void store_there(u32 there, float4 v, u32 barrier_there) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(there), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier_there) : "memory");
}
