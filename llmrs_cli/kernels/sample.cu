// Draws one token per row of logits, in one launch: penalties, bias, bans, mask, temperature, min-p, top-k, top-p and
// Gumbel noise, bit for bit as the reference defines them (see there for the rules by number).
//
// `gridDim.x` blocks share a row, each a slice of the vocabulary. A greedy or purely tempered row is one pass: each
// block leaves its best, the block that arrives last takes the best of all. A filtered row is not sorted. In the order
// (score descending, id ascending) all filters keep a prefix, and an id is kept if the counts and masses before it are
// small enough: so ids are drawn from all, and the first four of them tested in a second pass, exactly. If all four are
// outside, the next are drawn from what comes before them. Top-k with a small k draws from a shortlist instead; with a
// large one the end of its prefix is found first, by passes that each test four places.
// All blocks of a row are resident at once (the launcher sees to it), so barriers cannot hang.
#include "sample_adjust.cuh"
#include "sample_search.cuh"
#include "sample_shortlist.cuh"

constexpr int SMALL_K = 200;

extern "C" __global__ void __launch_bounds__(THREADS, 2) sample(
    float* logits,               // (R, V); rows with penalties, biases, bans or a mask are overwritten
    const int* rows,             // (R,) row of the state, or -1: padding
    const int* tokens_at,        // (R,) index into the step's tokens
    const int* positions,        // (T,) of the step's tokens
    const Sampling* sampling,    // (rows,)
    const int* bias_ids,         // (rows, B)
    const float* bias_values,    // (rows, B)
    const int* stop_ids,         // (rows, E)
    u16* counts,                 // (rows, W) bit 15: in the prompt; below: times in the answer
    const u32* mask,             // (R, ceil(V / 32)) or null
    int* pool,                   // (rows, P) tokens of every row
    Partial* partials,           // (R, 2, blocks)
    Meeting* meetings,           // (R,)
    Shortlist* shortlists,       // (R,)
    int* out,                    // (R, 2) token and whether the row failed
    int vocab, int count_width, int bias_width, int stop_width, int pool_width,
    int* const* out_at) {        // where `out` is written, or null: a recorded launch cannot be told otherwise
    __shared__ Sampling s;
    __shared__ Row row;
    __shared__ Peers peers;
    __shared__ Search search;
    __shared__ Exchange exchange;
    __shared__ ListRoom room;
    __shared__ u64 totals[SUMS];
    __shared__ int flag;

    allow_next();
    wait_for_previous();
    const int r = blockIdx.y, at = rows[r], token = tokens_at[r], block = blockIdx.x, blocks = gridDim.x;
    if (at < 0) return;
    const int position = positions[token] + 1;
    if (threadIdx.x < sizeof(Sampling) / 4)
        reinterpret_cast<u32*>(&s)[threadIdx.x] = reinterpret_cast<const u32*>(sampling + at)[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 quads = (vocab + 3) / 4;
        row = Row{
            nullptr, vocab, int(quads * block / blocks), int(quads * (block + 1) / blocks),
            s.temperature, s.seed_low, s.seed_high, position, s.choice, false};
        peers = Peers{meetings + r, partials + i64(r) * 2 * blocks, 0};
        search.start(s.min_p);
    }
    __syncthreads();
    auto view = [&] {  // with a pointer that is known to be of global memory
        Row mine = row;
        mine.logits = logits + i64(blockIdx.y) * vocab;
        return mine;
    };
    const bool greedy = s.temperature == 0.0f, choosing = !greedy && s.top_k > 0 && s.top_k < vocab;
    const bool filtered = !greedy && (choosing || s.top_p < 1.0f || s.min_p > 0.0f);
    const int bans = row.position < s.min_length ? s.stops : 0;
    if (s.penalised || s.biases || bans || mask) {
        const Rules rules{
            s.penalised ? counts + i64(at) * count_width : nullptr,
            mask ? mask + i64(r) * ((vocab + 31) / 32) : nullptr,
            bias_ids + i64(at) * bias_width,
            stop_ids + i64(at) * stop_width,
            bias_values + i64(at) * bias_width,
            s.biases, bans};
        const bool bad = __syncthreads_or(adjust(view(), s, rules));
        if (threadIdx.x == 0) row.bad = bad;
        __syncthreads();
    }

    bool surveying = greedy || choosing;  // the greatest logits are looked for, and nothing is drawn
#pragma unroll 1
    for (;;) {
        if (search.mode == DRAWING) {
            const int wanted = surveying ? greedy : filtered ? CANDIDATES : 1;
            const Found found =
                surveying ? greatest(view()) : race(view(), search.range, !filtered, exchange.leads);
            if (choosing && surveying) publish_maximum(found.best.score, shortlists + r);
            publish(row, found, wanted, exchange, peers.own());
            if (!filtered && !peers.leave(&flag)) return;
            search.gather(view(), filtered ? peers.meet() : peers.partials, wanted, exchange);
            if (!filtered || search.chosen >= 0) break;
            if (surveying) {
                surveying = false;
                const float top = search.range.top;
                if (s.top_k <= SMALL_K) {
                    shortlist(view(), threshold(row, shortlists + r, s.top_k), peers.meeting, shortlists + r);
                    peers.meet();
                    const u32 listed = __ldcg(&peers.meeting->listed);
                    if (listed <= LISTED) {
                        if (block == 0) draw_listed(row, s, search, shortlists + r, listed, room, exchange);
                        break;
                    }
                }
                if (threadIdx.x == 0) search.mode = COUNTING, search.high = place_of(top, 0);
                __syncthreads();
                continue;
            }
        } else if (threadIdx.x == 0) {
            search.probe();
        }
        __syncthreads();
        if (search.mode != DRAWING || s.top_p < 1.0f) {
            const Range& range = search.range;
            const bool counting = search.mode == COUNTING;
            sum_prefixes(view(), range.top, range.floor, counting, search.pivots, exchange.sums, peers.own());
            add_blocks(peers.meet(), totals);
        }
        if (threadIdx.x == 0) {
            if (search.mode == COUNTING) search.narrow(s.top_k, totals);
            else if (search.mode == WEIGHING) search.weigh(totals);
            else search.choose(s.top_p, totals);
        }
        __syncthreads();
        if (search.chosen >= 0) break;
    }
    if (threadIdx.x == 0 && (block == 0 || !filtered)) {
        const bool failed = search.chosen == vocab;
        const int id = failed ? 0 : search.chosen;
        int* to = out_at ? *out_at : out;
        to[2 * r] = id, to[2 * r + 1] = failed;
        pool[i64(at) * pool_width + row.position] = id;
        u16* count = counts + i64(at) * count_width + id;
        if (s.penalised && !failed && (*count & 0x7fff) < 0x7fff) ++*count;  // one that failed may be drawn again
    }
    if (filtered && !peers.leave(&flag)) return;
    if (threadIdx.x == 0) *peers.meeting = Meeting{0, 0, 0, 0};
}
