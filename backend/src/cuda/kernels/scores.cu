// What attention's scores are like, for the unified maximum (FlashDecoding++ section 3, Figure 5): counts of scores by their size,
// and of these the range that nearly all of them are in.
//
// A block has a row of the cache and a part of its positions, as in attention.cu; a thread takes a position at a time. This is
// done for one step of a text, so that it is simple and not fast.
#include "stored.cuh"

#define SCORES_THREADS 128
// Bins a unit wide; what lies further off counts for the outermost.
#define SCORE_BINS 2048
// One of so many scores is left out at either end: 99.99% are within, as in Figure 5.
#define LEFT_OUT 20000
// How far a score may be from phi. e^64 times any number of positions, and e^-64, are ordinary numbers in f32.
#define REACH 64.0f
// Of it, what is kept for scores that were not seen yet.
#define RESERVE 16.0f

struct ScoresArguments {
    const void* queries;             // [sequences * kv_heads, group, head_dim]
    const unsigned long long* pages; // where each page of the cache is
    const unsigned int* page_ends;   // past the last position that each page holds
    const unsigned int* firsts;      // [sequences]: the first position that is seen; null: 0
    unsigned int* bins;              // [SCORE_BINS], which are added to
    unsigned int page_count;
    unsigned int row_start, rows;    // rows of the cache that lie in this segment
    unsigned int kv_heads, group, head_dim, context_len;
    unsigned int window;             // positions that are seen, the query's own included; 0: all
    unsigned int record_bytes;
    float scale;                     // of a product of query and key
};

template <class T, class S>
__device__ void count_scores(const ScoresArguments& arguments) {
    // Nearly all scores are in few bins: a block's own first, which are not those of all others as well.
    SHARED(unsigned int, counts, SCORE_BINS);
    for (unsigned int bin = threadIdx.x; bin < SCORE_BINS; bin += SCORES_THREADS) {
        counts[bin] = 0;
    }
    __syncthreads();
    unsigned int row = arguments.row_start + blockIdx.x, sequence = row / arguments.kv_heads;
    unsigned int begin = arguments.firsts ? arguments.firsts[sequence] : 0, end = arguments.context_len;
    if (arguments.window && end > arguments.window) {
        begin = most(begin, end - arguments.window);
    }
    const T* query = (const T*)arguments.queries +
                     ((unsigned long long)row * arguments.group + blockIdx.y) * arguments.head_dim;
    for (unsigned int position = begin + threadIdx.x; position < end; position += SCORES_THREADS) {
        const unsigned char* key = record_at(arguments, position) + blockIdx.x * S::bytes(arguments.head_dim);
        float score = 0.0f;
        for (unsigned int first = 0; first < arguments.head_dim; first += 8) {
            float left[8], right[8];
            S stored;
            stored.load(key, first, arguments.head_dim);
            stored.widened(right);
            widened_head(query, first, arguments.head_dim, left);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                score = fmaf(left[i], right[i], score);
            }
        }
        float bin = floorf(score * arguments.scale) + SCORE_BINS / 2;
        // A NaN is the outermost as well.
        bin = bin > 0.0f ? bin : 0.0f;
        atomicAdd(counts + (bin < SCORE_BINS - 1 ? (unsigned int)bin : SCORE_BINS - 1), 1u);
    }
    __syncthreads();
    for (unsigned int bin = threadIdx.x; bin < SCORE_BINS; bin += SCORES_THREADS) {
        if (counts[bin] != 0) {
            atomicAdd(arguments.bins + bin, counts[bin]);
        }
    }
}

struct RangeArguments {
    const unsigned int* bins; // [SCORE_BINS]
    float* range;             // phi, low, high; low = high = 0 where scores are too wide
};

// A warp, each lane a run of bins: phi is the middle of the range that scores are in.
__device__ void choose(const RangeArguments& arguments) {
    SHARED(unsigned long long, sums, WARP);
    SHARED(unsigned int, ends, 2);
    constexpr unsigned int RUN = SCORE_BINS / WARP;
    unsigned int lane = threadIdx.x, first = lane * RUN;
    unsigned long long own = 0, before = 0, after = 0;
    for (unsigned int bin = first; bin < first + RUN; bin++) {
        own += arguments.bins[bin];
    }
    sums[lane] = own;
    __syncthreads();
    for (unsigned int other = 0; other < WARP; other++) {
        (other < lane ? before : after) += other == lane ? 0 : sums[other];
    }
    unsigned long long all = before + own + after, most_out = all / LEFT_OUT;
    // The bins with which more would be left out than may be, from either end: each is in one lane's run.
    if (before <= most_out && before + own > most_out) {
        unsigned int bin = first;
        for (unsigned long long out = before + arguments.bins[bin]; out <= most_out; out += arguments.bins[bin]) {
            bin++;
        }
        ends[0] = bin;
    }
    if (after <= most_out && after + own > most_out) {
        unsigned int bin = first + RUN - 1;
        for (unsigned long long out = after + arguments.bins[bin]; out <= most_out; out += arguments.bins[bin]) {
            bin--;
        }
        ends[1] = bin;
    }
    __syncthreads();
    if (lane != 0) {
        return;
    }
    // Of no scores at all there are no ends.
    unsigned int lowest = all ? ends[0] : 0, highest = all ? ends[1] : 0;
    float low = (float)lowest - SCORE_BINS / 2, high = (float)highest + 1 - SCORE_BINS / 2;
    bool fits = (high - low) / 2 + RESERVE <= REACH && lowest > 0 && highest < SCORE_BINS - 1;
    arguments.range[0] = fits ? (low + high) / 2 : 0.0f;
    arguments.range[1] = fits ? -REACH : 0.0f;
    arguments.range[2] = fits ? REACH : 0.0f;
}

#define SCORES(TYPE, STORED, KEPT) \
    KERNEL(count_scores_##TYPE##_##KEPT, ScoresArguments, SCORES_THREADS, count_scores<TYPE, STORED>)

SCORES(f16, Whole<f16>, whole)
SCORES(f16, Packed, packed)
SCORES(f16, Ragged<f16>, ragged)
SCORES(bf16, Whole<bf16>, whole)
SCORES(bf16, Packed, packed)
SCORES(bf16, Ragged<bf16>, ragged)

KERNEL(choose_range, RangeArguments, WARP, choose)
