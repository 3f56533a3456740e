// Blocks of a cluster (Hopper and newer): they meet, and read each other's shared memory.
#pragma once
#include "common.cuh"

// What each block wrote before it arrives is seen by all after they have waited.
DEVICE void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
DEVICE void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
DEVICE void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

// Address of what stands at `shared` in block `rank` of the cluster.
DEVICE u32 cluster_address(u32 shared, u32 rank) {
    u32 there = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
#endif
    return there;
}

DEVICE float4 load_cluster(u32 address) {
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
#endif
    return v;
}
