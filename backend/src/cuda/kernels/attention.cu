// Attention of one query a sequence over its cache, split over positions (FlashDecoding++ section 3).
//
// A block has a row of the cache, a part of its positions, and up to HEADS of the query heads that share the row. Its threads
// are teams of as many lanes as a head has eights of elements; a team takes a position at a time, some of them side by side so
// that loads overlap. What the splits found is put together by `combine`.
//
// Synchronised: partial softmax with a running maximum (Eq. 2). Unified: all partial sums share the scaling factor phi
// (Eq. 3, 4), so none waits for another's maximum; where a score leaves low < score - phi < high its query is flagged, and
// computed again by the synchronised way, which otherwise returns at once. So nobody asks the host. Where a model's scores are
// too wide for any phi, all its queries are flagged at once.
#include "mixed.cuh"

#define ATTENTION_THREADS 128
#define SIDE_BY_SIDE 4
// Values of all teams of a block: teams * HEADS * head_dim, where teams * head_dim is at most 8 * ATTENTION_THREADS.
#define TEAMS_MOST 16

struct AttentionArguments {
    const void* queries;             // [sequences * kv_heads, group, head_dim]
    const unsigned long long* pages; // where each page of the cache is
    const unsigned int* page_ends;   // past the last position that each page holds
    const unsigned int* firsts;      // [sequences]: the first position that is seen; null: 0
    float* numerators;               // [rows, group, splits, head_dim]
    float* denominators;             // [rows, group, splits]
    float* maxima;                   // [rows, group, splits]; not written in the unified way
    unsigned int* overflow;          // [rows, group]: 1 where a score left the range; zero before, and after `combine`
    const float* range;              // phi, low, high; where low is not below high the unified way is off
    unsigned int* recomputed;        // counts queries that were computed again; null: nobody asks
    void* y;                         // [sequences * kv_heads, group, head_dim], of `combine`
    unsigned int page_count;
    unsigned int row_start, rows;    // rows of the cache that lie in this segment
    unsigned int kv_heads, group, head_dim, context_len;
    unsigned int window;             // positions that are seen, the query's own included; 0: all
    unsigned int record_bytes, splits;
    float scale;                     // of a product of query and key
};

__device__ inline unsigned int context_of(const AttentionArguments& arguments) {
    return arguments.context_len;
}

__device__ inline unsigned int context_of(const Mixed<AttentionArguments>& arguments) {
    return arguments.contexts[blockIdx.x / arguments.kv_heads];
}

// The unified maximum of a model's scores, which lies on the device since it is found there (scores.cu).
struct Unified {
    float phi, low, high;
};

enum Way { SYNCHRONISED, UNIFIED, RECOMPUTED };

struct Seen {
    unsigned int begin, end;
};

// The positions that this block's query sees in this block's split.
template <class A>
__device__ inline Seen seen_by(const A& arguments) {
    unsigned int sequence = (arguments.row_start + blockIdx.x) / arguments.kv_heads;
    unsigned int begin = arguments.firsts ? arguments.firsts[sequence] : 0;
    unsigned int end = context_of(arguments);
    if (arguments.window && end > arguments.window) {
        begin = most(begin, end - arguments.window);
    }
    unsigned int part = (end - begin + arguments.splits - 1) / arguments.splits;
    unsigned int from = least(begin + blockIdx.y * part, end);
    return Seen{from, least(from + part, end)};
}

// The first query of this block, of all that there are.
__device__ inline unsigned long long query_of(const AttentionArguments& arguments, unsigned int heads) {
    return (unsigned long long)blockIdx.x * arguments.group + blockIdx.z * heads;
}

// What a team keeps of HEADS queries.
template <int HEADS>
struct Sums {
    float values[HEADS][8];
    float denominator[HEADS], maximum[HEADS];
};

// Adds SIDE_BY_SIDE positions, of which those that are not there weigh nothing.
template <class S, int HEADS, Way WAY>
__device__ inline void add(const Unified& unified, Sums<HEADS>& sums, int head, const float* scores,
                           const bool* there, const S* values, unsigned int* left) {
    float weights[SIDE_BY_SIDE];
    if (WAY == UNIFIED) {
#pragma unroll
        for (int u = 0; u < SIDE_BY_SIDE; u++) {
            float off = scores[u] - unified.phi;
            // A NaN leaves the range as well.
            *left |= there[u] && !(off > unified.low && off < unified.high) ? 1u << head : 0u;
            weights[u] = there[u] ? __expf(off) : 0.0f;
        }
    } else {
        float maximum = sums.maximum[head];
#pragma unroll
        for (int u = 0; u < SIDE_BY_SIDE; u++) {
            maximum = there[u] ? larger(maximum, scores[u]) : maximum;
        }
        // Where nothing has been seen yet there is nothing to scale.
        float shrink = sums.maximum[head] == maximum ? 1.0f : __expf(sums.maximum[head] - maximum);
        sums.maximum[head] = maximum;
        sums.denominator[head] *= shrink;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sums.values[head][i] *= shrink;
        }
#pragma unroll
        for (int u = 0; u < SIDE_BY_SIDE; u++) {
            weights[u] = there[u] ? __expf(scores[u] - maximum) : 0.0f;
        }
    }
#pragma unroll
    for (int u = 0; u < SIDE_BY_SIDE; u++) {
        float elements[8];
        values[u].widened(elements);
        sums.denominator[head] += weights[u];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sums.values[head][i] = fmaf(weights[u], elements[i], sums.values[head][i]);
        }
    }
}

// Puts the teams' sums together in shared memory and writes those of the block.
template <int HEADS, Way WAY>
__device__ inline void gather(const AttentionArguments& arguments, const Sums<HEADS>& sums, unsigned int lanes,
                              unsigned int heads) {
    SHARED(float, values, HEADS * 8 * ATTENTION_THREADS);
    SHARED(float, denominators, HEADS * TEAMS_MOST);
    SHARED(float, maxima, HEADS * TEAMS_MOST);
    unsigned int teams = ATTENTION_THREADS / lanes, team = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    unsigned int width = arguments.head_dim;
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
        unsigned int place = head * teams + team;
        if (lane == 0) {
            denominators[place] = sums.denominator[head];
            maxima[place] = sums.maximum[head];
        }
        for (int i = 0; i < 8 && lane * 8 + i < width; i++) {
            values[place * width + lane * 8 + i] = sums.values[head][i];
        }
    }
    __syncthreads();
    unsigned long long query = query_of(arguments, HEADS);
    for (unsigned int i = threadIdx.x; i < heads * width; i += ATTENTION_THREADS) {
        unsigned int head = i / width, first = head * teams;
        // The other queries of the block stay as the unified way left them.
        if (WAY == RECOMPUTED && !arguments.overflow[query + head]) {
            continue;
        }
        float largest = maxima[first];
        for (unsigned int t = 1; t < teams && WAY != UNIFIED; t++) {
            largest = larger(largest, maxima[first + t]);
        }
        float numerator = 0.0f, denominator = 0.0f;
        for (unsigned int t = 0; t < teams; t++) {
            float shrink = WAY == UNIFIED || maxima[first + t] == largest ? 1.0f : __expf(maxima[first + t] - largest);
            numerator = fmaf(shrink, values[(first + t) * width + i % width], numerator);
            denominator = fmaf(shrink, denominators[first + t], denominator);
        }
        unsigned long long part = (query + head) * arguments.splits + blockIdx.y;
        arguments.numerators[part * width + i % width] = numerator;
        if (i % width == 0) {
            arguments.denominators[part] = denominator;
            if (WAY != UNIFIED) {
                arguments.maxima[part] = largest;
            }
        }
    }
}

// Whether a query of this block is to be computed again.
__device__ inline bool flagged(const AttentionArguments& arguments, unsigned long long query, unsigned int heads) {
    unsigned int any = 0;
    for (unsigned int head = 0; head < heads; head++) {
        any |= arguments.overflow[query + head];
    }
    return any != 0;
}

template <class T, class S, int HEADS, Way WAY, class A>
__device__ void attend(const A& arguments) {
    unsigned int heads = least(HEADS, arguments.group - blockIdx.z * HEADS);
    unsigned long long query = query_of(arguments, HEADS);
    if (WAY == RECOMPUTED && !flagged(arguments, query, heads)) {
        return;
    }
    Unified unified = {0.0f, 0.0f, 0.0f};
    if (WAY == UNIFIED) {
        unified = Unified{arguments.range[0], arguments.range[1], arguments.range[2]};
        if (!(unified.low < unified.high)) {
            for (unsigned int head = threadIdx.x; head < heads; head += ATTENTION_THREADS) {
                arguments.overflow[query + head] = 1;
            }
            return;
        }
    }
    unsigned int lanes = 8;
    while (lanes * 8 < arguments.head_dim) {
        lanes *= 2;
    }
    unsigned int teams = ATTENTION_THREADS / lanes, team = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    bool active = lane * 8 < arguments.head_dim;
    float queries[HEADS][8];
    Sums<HEADS> sums;
    // Queries of all rows of the batch, results of partial sums of the rows of this segment.
    const T* from = (const T*)arguments.queries + ((unsigned long long)arguments.row_start * arguments.group + query) * arguments.head_dim;
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
        // Elements past the head's are zero, and all of them where the block has fewer queries.
        unsigned int width = head < heads ? arguments.head_dim : 0;
        widened_head(from + head * arguments.head_dim, lane * 8, width, queries[head]);
        sums.denominator[head] = 0.0f;
        sums.maximum[head] = -__uint_as_float(0x7f800000u);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sums.values[head][i] = 0.0f;
        }
    }
    Seen seen = seen_by(arguments);
    unsigned int key = row_of_record(arguments) * S::bytes(arguments.head_dim);
    unsigned int value = key + rows_of_record(arguments) * S::bytes(arguments.head_dim);
    // A bit a query whose scores left the range.
    unsigned int left = 0;
    for (unsigned int base = seen.begin; base < seen.end; base += teams * SIDE_BY_SIDE) {
        S keys[SIDE_BY_SIDE], values[SIDE_BY_SIDE];
        bool there[SIDE_BY_SIDE];
#pragma unroll
        for (int u = 0; u < SIDE_BY_SIDE; u++) {
            unsigned int position = base + u * teams + team;
            there[u] = position < seen.end;
            // A position that is not there stands in as the first one, with no weight.
            const unsigned char* record = record_at(arguments, there[u] ? position : seen.begin);
            keys[u].load(record + key, active ? lane * 8 : 0, arguments.head_dim);
            values[u].load(record + value, active ? lane * 8 : 0, arguments.head_dim);
        }
#pragma unroll
        for (int head = 0; head < HEADS; head++) {
            float scores[SIDE_BY_SIDE];
#pragma unroll
            for (int u = 0; u < SIDE_BY_SIDE; u++) {
                float elements[8];
                keys[u].widened(elements);
                float score = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    // The query's elements are zero where the lane has none of the head.
                    score = active ? fmaf(queries[head][i], elements[i], score) : 0.0f;
                }
                for (unsigned int offset = lanes / 2; offset > 0; offset /= 2) {
                    score += __shfl_xor_sync(ALL_LANES, score, offset);
                }
                scores[u] = score * arguments.scale;
            }
            add<S, HEADS, WAY>(unified, sums, head, scores, there, values, &left);
        }
    }
    for (int head = 0; WAY == UNIFIED && head < HEADS; head++) {
        if (left >> head & 1u && head < heads) {
            arguments.overflow[query + head] = 1;
        }
    }
    gather<HEADS, WAY>(arguments, sums, lanes, heads);
}

// A block a query: the outer sums of Eq. 4, or of Eq. 2 where the query was computed by the synchronised way.
template <class T, Way WAY>
__device__ void combine(const AttentionArguments& arguments) {
    unsigned long long query = blockIdx.x;
    const float* maxima = arguments.maxima + query * arguments.splits;
    const float* denominators = arguments.denominators + query * arguments.splits;
    bool plain = WAY == UNIFIED && !arguments.overflow[query];
    float largest = -__uint_as_float(0x7f800000u);
    for (unsigned int split = 0; split < arguments.splits && !plain; split++) {
        largest = larger(largest, maxima[split]);
    }
    unsigned long long width = arguments.head_dim;
    T* y = (T*)arguments.y + ((unsigned long long)arguments.row_start * arguments.group + query) * width;
    for (unsigned int i = threadIdx.x; i < width; i += blockDim.x) {
        float numerator = 0.0f, denominator = 0.0f;
        for (unsigned int split = 0; split < arguments.splits; split++) {
            float shrink = plain || maxima[split] == largest ? 1.0f : __expf(maxima[split] - largest);
            numerator = fmaf(shrink, arguments.numerators[(query * arguments.splits + split) * width + i], numerator);
            denominator = fmaf(shrink, denominators[split], denominator);
        }
        y[i] = narrowed<T>(numerator / denominator);
    }
    if (WAY == UNIFIED && !plain) {
        // All have read the flag, which the next attention finds as this one did.
        __syncthreads();
        if (threadIdx.x == 0) {
            arguments.overflow[query] = 0;
            if (arguments.recomputed) {
                atomicAdd(arguments.recomputed, 1u);
            }
        }
    }
}

#define ATTENTION(TYPE, STORED, KEPT, HEADS)                                                                   \
    KERNEL(attend_##TYPE##_##KEPT##_h##HEADS, AttentionArguments, ATTENTION_THREADS,                         \
           attend<TYPE, STORED, HEADS, SYNCHRONISED>)                                                        \
    KERNEL(attend_unified_##TYPE##_##KEPT##_h##HEADS, AttentionArguments, ATTENTION_THREADS,                 \
           attend<TYPE, STORED, HEADS, UNIFIED>)                                                             \
    KERNEL(attend_again_##TYPE##_##KEPT##_h##HEADS, AttentionArguments, ATTENTION_THREADS,                   \
           attend<TYPE, STORED, HEADS, RECOMPUTED>)

// Sequences at different places (mixed.cuh) attend by the synchronised way.
#define MIXED(TYPE, STORED, KEPT, HEADS)                                                                       \
    KERNEL(attend_mixed_##TYPE##_##KEPT##_h##HEADS, Mixed<AttentionArguments>, ATTENTION_THREADS,                       \
           attend<TYPE, STORED, HEADS, SYNCHRONISED>)

ATTENTION(f16, Whole<f16>, whole, 1)
ATTENTION(f16, Whole<f16>, whole, 4)
ATTENTION(f16, Packed, packed, 1)
ATTENTION(f16, Packed, packed, 4)
ATTENTION(bf16, Whole<bf16>, whole, 1)
ATTENTION(bf16, Whole<bf16>, whole, 4)
ATTENTION(bf16, Packed, packed, 1)
ATTENTION(bf16, Packed, packed, 4)
ATTENTION(f16, Ragged<f16>, ragged, 1)
ATTENTION(f16, Ragged<f16>, ragged, 4)
ATTENTION(bf16, Ragged<bf16>, ragged, 1)
ATTENTION(bf16, Ragged<bf16>, ragged, 4)

MIXED(f16, Whole<f16>, whole, 1)
MIXED(f16, Whole<f16>, whole, 4)
MIXED(bf16, Whole<bf16>, whole, 1)
MIXED(bf16, Whole<bf16>, whole, 4)
MIXED(f16, Ragged<f16>, ragged, 1)
MIXED(f16, Ragged<f16>, ragged, 4)
MIXED(bf16, Ragged<bf16>, ragged, 1)
MIXED(bf16, Ragged<bf16>, ragged, 4)

KERNEL(combine_f16, AttentionArguments, ATTENTION_THREADS, combine<f16, SYNCHRONISED>)
KERNEL(combine_bf16, AttentionArguments, ATTENTION_THREADS, combine<bf16, SYNCHRONISED>)
KERNEL(combine_unified_f16, AttentionArguments, ATTENTION_THREADS, combine<f16, UNIFIED>)
KERNEL(combine_unified_bf16, AttentionArguments, ATTENTION_THREADS, combine<bf16, UNIFIED>)
