// A warp's own ring of steps in shared memory that Hopper's copy engine fills, a barrier for each.
//
// What the copy engine brings does not stand in the queue of a multiprocessor's loads. So all of the ring is asked for
// before wait_for_previous(), and what a kernel reads of the one before it is not behind that.
#pragma once
#include "cluster_barrier.cuh"

constexpr int MOST_GATHERED = 48 << 10;  // bytes of x that a block copies whole before it begins, rather than by steps
constexpr int X_AHEAD = 3;               // steps of x on their way where it comes by steps

// Bytes of the barriers of so many steps, to 16.
DEVICE int barrier_bytes(int steps) { return (steps + 1) / 2 * 16; }

struct Ring {
    u32 slots, barriers, slot_bytes;  // where those of this warp begin
    int depth;                        // steps, at most 32
    u32 slot, barrier;                // of the step that is next
    int left;                         // before the ring begins again
    u32 phase = 1;                    // before all of it has been asked for; then 0, 1, 0, …

    // `start`: the rings of all warps, then their barriers. Nobody waits for another warp's.
    DEVICE Ring(u32 start, int warps, int warp, u32 bytes, int steps)
        : slots(start + warp * steps * bytes), barriers(start + warps * steps * bytes + warp * steps * 8),
          slot_bytes(bytes), depth(steps), slot(slots), barrier(barriers), left(steps) {
        const int lane = threadIdx.x % 32;
        if (lane < depth) {
            barrier_init(barriers + lane * 8, 1);
            barriers_ready();
        }
        __syncwarp();
    }
    // All of the next step is here.
    DEVICE void wait() const {
        barrier_wait(barrier, phase);
        __syncwarp();
    }
    DEVICE void next() {
        slot += slot_bytes, barrier += 8;
        if (--left == 0) left = depth, slot = slots, barrier = barriers, phase ^= 1;
    }
};
