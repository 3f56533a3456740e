// A line of equal units cut into equal runs, one a worker, whatever the sizes (stream-K; Osama et al., 2023).
//
// Units lie in columns of `across` that share an output. A run may end in the middle of a column: then each of its
// workers stores its part of the sums, and the last to arrive adds all parts up, in the order of the line. So the
// result does not depend on who is last. A worker has at most two unfinished columns: the one that its run begins
// inside of (slot 0) and the one that its run ends inside of (slot 1).
#pragma once
#include "common.cuh"

struct Line {
    u32 units, workers, across;  // units · workers < 2³², workers ≤ units

    DEVICE u32 start_of(u32 worker) const { return units * worker / workers; }
    DEVICE u32 worker_at(u32 unit) const { return ((unit + 1) * workers - 1) / units; }
};

// The workers that share a column, and where each has its part.
struct Sharers {
    u32 first, last;

    DEVICE Sharers(const Line& line, u32 column)
        : first(line.worker_at(column * line.across)), last(line.worker_at((column + 1) * line.across - 1)) {}
    DEVICE u32 count() const { return last - first + 1; }
    DEVICE u32 slot_of(u32 worker) const { return 2 * worker + (worker == first ? 1 : 0); }
};
