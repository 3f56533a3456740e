"""Sizes of bulk_ring.cuh: a warp's ring of steps that Hopper's copy engine fills. No kernel of its own."""

from __future__ import annotations

BARRIER_BYTES = 8
LEAST_STEPS, MOST_STEPS = 2, 32
"""Of a ring."""
MOST_GATHERED = 48 << 10
"""Bytes of activations that a block copies whole before it begins, rather than by steps."""
X_AHEAD = 3
"""Steps of activations on their way where they come by steps."""
BULK_ROOM = 226 << 10
"""Shared memory of a block with such rings, at most; Hopper has one KiB more."""


def ring_bytes(warps: int, steps: int, step_bytes: int) -> int:
    """Shared memory of the rings of so many warps, with their barriers."""
    slots = warps * steps
    return slots * step_bytes + (slots + 1) // 2 * 2 * BARRIER_BYTES


def steps_that_fit(warps: int, wanted: int, step_bytes: int, room: int) -> int:
    """Steps of each warp's ring: as many as are wanted, or as `room` bytes hold."""
    fitting = (room - BARRIER_BYTES) // (warps * (step_bytes + BARRIER_BYTES))
    return max(LEAST_STEPS, min(wanted, MOST_STEPS, fitting))
