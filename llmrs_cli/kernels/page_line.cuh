// A step's pages in one line: sequence by sequence, key head by key head, page by page.
#pragma once
#include "common.cuh"

// A place on the line of pages.
struct Cursor {
    int sequence, head, page, pages;
};

struct Line {
    const int* first_page;  // (S + 1,) pages of the decode sequences before each one
    int heads;              // Hkv
    int sequences;
    int chunk;              // pages

    // Of the pair's page that `place` falls on; a warp searches together, 32 places a round.
    DEVICE Cursor at(int place) const {
        const int lane = threadIdx.x % 32;
        int low = 0, span = sequences;  // last sequence that begins at or before `place`, in [low, low + span)
        while (span > 1) {
            const int stride = (span + 31) / 32, probe = lane * stride;
            const bool before = probe < span && first_page[low + probe] * heads <= place;
            const int last = __popc(__ballot_sync(FULL, before)) - 1;
            low += last * stride;
            span = min(stride, span - last * stride);
        }
        const int pages = first_page[low + 1] - first_page[low], rest = place - first_page[low] * heads;
        return Cursor{low, rest / pages, rest % pages, pages};
    }
    // The first beginning of a chunk at or after `place`; beyond the line stays beyond.
    DEVICE int snap(int place) const {
        if (place >= first_page[sequences] * heads) return place;
        const Cursor c = at(place);
        const int ahead = (chunk - c.page % chunk) % chunk;
        return place + min(ahead, c.pages - c.page);
    }
    DEVICE void next(Cursor& c) const {
        if (++c.page < c.pages) return;
        c.page = 0;
        if (++c.head < heads) return;
        c.head = 0;
        do { c.sequence++; } while (first_page[c.sequence + 1] == first_page[c.sequence]);
        c.pages = first_page[c.sequence + 1] - first_page[c.sequence];
    }
};
