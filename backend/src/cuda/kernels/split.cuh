// What an attention that is split over positions has beside its loop over them: which positions are a block's, how what its warps
// found becomes that of the block, and how parts become results.
//
// A block has a row of the cache, a part of its positions, and some of the query heads that share the row. Each writes its partial
// sums, and the one that is the last of its row to have done so puts them together: no further launch waits for all rows.
// Sums are taken in the order of parts, whichever block that is, so results have the same bits each time.
#pragma once
#include "mixed.cuh"
#include "reduce.cuh"

#define ATTENTION_WARPS 4
#define ATTENTION_THREADS (ATTENTION_WARPS * WARP)
// Parts that positions are split into, at most.
#define PARTS_MOST 256

struct AttentionArguments {
    const void* queries;             // [sequences * kv_heads, group, head_dim]
    const unsigned long long* pages; // where each page of the cache is
    const unsigned int* page_ends;   // past the last position that each page holds
    const unsigned int* firsts;      // [sequences]: the first position that is seen; null: 0
    float* numerators;               // [rows, group, splits, head_dim]
    float* denominators;             // [rows, group, splits]
    float* maxima;                   // [rows, group, splits]; not written in the unified way
    unsigned int* arrived;           // [rows, blocks of heads]: parts that are there, zero before and after; null: `combine` follows
    unsigned int* overflow;          // [rows, group]: 1 where a score left the range, zero before and after
    const float* range;              // phi, low, high; null, or low not below high: all is synchronised
    unsigned int* recomputed;        // counts queries that were computed again; null: nobody asks
    void* y;                         // [sequences * kv_heads, group, head_dim]
    unsigned int page_count;
    unsigned int row_start, rows;    // rows of the cache that lie in this segment
    unsigned int kv_heads, group, head_dim, context_len;
    unsigned int window;             // positions that are seen, the query's own included; 0: all
    unsigned int record_bytes;
    unsigned int splits, part;       // parts of the positions at most, and how many positions each has but the last
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
    bool on;
};

__device__ inline Unified unified_of(const AttentionArguments& arguments) {
    if (!arguments.range) {
        return Unified{0.0f, 0.0f, 0.0f, false};
    }
    float low = arguments.range[1], high = arguments.range[2];
    return Unified{arguments.range[0], low, high, low < high};
}

struct Seen {
    unsigned int begin, end;
};

// The positions that the queries of this block's row see.
template <class A>
__device__ inline Seen seen_by(const A& arguments) {
    unsigned int sequence = (arguments.row_start + blockIdx.x) / arguments.kv_heads;
    unsigned int begin = arguments.firsts ? arguments.firsts[sequence] : 0;
    unsigned int end = context_of(arguments);
    if (arguments.window && end > arguments.window) {
        begin = most(begin, end - arguments.window);
    }
    return Seen{least(begin, end), end};
}

// The parts of positions; who sees fewer than others has fewer.
__device__ inline unsigned int parts_of(const AttentionArguments& arguments, const Seen& seen) {
    return most((seen.end - seen.begin + arguments.part - 1) / arguments.part, 1);
}

// This block's part.
__device__ inline Seen part_of(const AttentionArguments& arguments, const Seen& seen) {
    unsigned int begin = seen.begin + blockIdx.y * arguments.part;
    return Seen{begin, least(begin + arguments.part, seen.end)};
}

// Queries of a row that a block has at a time: the first of all that there are, how many, and which of the row's so many they are.
struct Heads {
    unsigned long long query;
    unsigned int count, number;
};

__device__ inline Heads heads_of(const AttentionArguments& arguments, unsigned int heads, unsigned int number) {
    unsigned int first = number * heads;
    unsigned long long query = (unsigned long long)blockIdx.x * arguments.group + first;
    return Heads{query, least(heads, arguments.group - first), number};
}

// Queries are those of all rows of the batch, partial sums those of the rows of this segment.
__device__ inline unsigned long long of_batch(const AttentionArguments& arguments, unsigned long long query) {
    return (unsigned long long)arguments.row_start * arguments.group + query;
}

// What the warps of a block found, in shared memory.
struct Found {
    float* values;       // [heads, warps, head_dim]
    float* denominators; // [heads, warps]
    float* maxima;       // [heads, warps]
    unsigned int* marks; // [heads]: flags, once parts are put together
};

// A sum over positions of an element of the values, weighted, and that of the weights.
struct Sum {
    float numerator, denominator, maximum;
};

// e to a power, which may come out as zero where it is tiny.
__device__ inline float exponential(float power) {
    return power_of_two(power * 1.4426950408889634f);
}

// What scales sums that were taken with one maximum to those with a larger one. Where nothing was seen there is nothing to scale.
__device__ inline float shrinks_by(float maximum, float largest) {
    return maximum == largest ? 1.0f : exponential(maximum - largest);
}

// The outer sum of FlashDecoding++'s Eq. 2, or of Eq. 4 where all sums share phi.
__device__ inline Sum of_warps(const Found& found, unsigned int head, unsigned int element, unsigned int width, bool share) {
    unsigned int first = head * ATTENTION_WARPS;
    Sum sum = {0.0f, 0.0f, found.maxima[first]};
#pragma unroll
    for (int warp = 1; warp < ATTENTION_WARPS; warp++) {
        sum.maximum = larger(sum.maximum, found.maxima[first + warp]);
    }
#pragma unroll
    for (int warp = 0; warp < ATTENTION_WARPS; warp++) {
        float by = share ? 1.0f : shrinks_by(found.maxima[first + warp], sum.maximum);
        sum.numerator = fmaf(by, found.values[(first + warp) * width + element], sum.numerator);
        sum.denominator = fmaf(by, found.denominators[first + warp], sum.denominator);
    }
    return sum;
}

template <class T>
__device__ inline void put_result(const AttentionArguments& arguments, unsigned long long query, unsigned int element,
                                  float result) {
    T* y = (T*)arguments.y + of_batch(arguments, query) * arguments.head_dim;
    y[element] = narrowed<T>(result);
}

// The results of a block that has all positions, of those of its queries that have a bit.
template <class T>
__device__ inline void put_all(const AttentionArguments& arguments, const Heads& own, const Found& found, bool share,
                               unsigned int bits) {
    unsigned int width = arguments.head_dim;
    for (unsigned int i = threadIdx.x; i < own.count * width; i += ATTENTION_THREADS) {
        if (bits >> i / width & 1u) {
            Sum sum = of_warps(found, i / width, i % width, width, share);
            put_result<T>(arguments, own.query + i / width, i % width, sum.numerator / sum.denominator);
        }
    }
}

// This block's part of the sums, for the block that puts them together.
__device__ inline void put_part(const AttentionArguments& arguments, const Heads& own, const Found& found, bool share) {
    unsigned int width = arguments.head_dim;
    for (unsigned int i = threadIdx.x; i < own.count * width; i += ATTENTION_THREADS) {
        Sum sum = of_warps(found, i / width, i % width, width, share);
        unsigned long long part = (own.query + i / width) * arguments.splits + blockIdx.y;
        arguments.numerators[part * width + i % width] = sum.numerator;
        if (i % width == 0) {
            arguments.denominators[part] = sum.denominator;
            if (!share) {
                arguments.maxima[part] = sum.maximum;
            }
        }
    }
}

// What the parts of each head weigh beside each other, in place of values [heads, parts]; their denominators' sum [heads]; and flags.
__device__ inline void weigh_parts(const AttentionArguments& arguments, const Heads& own, unsigned int parts, bool share,
                                   const Found& found) {
    unsigned int lane = threadIdx.x % WARP;
    for (unsigned int head = threadIdx.x / WARP; head < own.count; head += ATTENTION_WARPS) {
        if (share && lane == 0) {
            found.marks[head] = arguments.overflow[own.query + head];
        }
        const float* maxima = arguments.maxima + (own.query + head) * arguments.splits;
        const float* denominators = arguments.denominators + (own.query + head) * arguments.splits;
        float largest = -__uint_as_float(0x7f800000u), sum = 0.0f;
        for (unsigned int part = lane; part < parts && !share; part += WARP) {
            largest = larger(largest, maxima[part]);
        }
        largest = share ? largest : warp_largest(largest);
        for (unsigned int part = lane; part < parts; part += WARP) {
            float by = share ? 1.0f : shrinks_by(maxima[part], largest);
            found.values[head * parts + part] = by;
            sum = fmaf(by, denominators[part], sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            found.denominators[head] = sum;
        }
    }
}

// Partial sums of an element, of all heads and some parts, all of which are under way before the first is used.
template <int HEADS>
struct Fetched {
    static constexpr int PARTS = HEADS == 1 ? 16 : 32 / HEADS;
    float numerators[HEADS][PARTS];

    __device__ void fetch(const AttentionArguments& arguments, const Heads& own, unsigned int parts, unsigned int first,
                        unsigned int element) {
        const float* from = arguments.numerators + own.query * arguments.splits * arguments.head_dim;
        unsigned int there = element < arguments.head_dim ? parts : 0;
#pragma unroll
        for (int head = 0; head < HEADS; head++) {
            unsigned int at = (head * arguments.splits + first) * arguments.head_dim + element;
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                numerators[head][i] = head < own.count && first + i < there ? from[at + i * arguments.head_dim] : 0.0f;
            }
        }
    }

    __device__ void add(float* sums, const float* weights, const Heads& own, unsigned int parts, unsigned int first) const {
#pragma unroll
        for (int head = 0; head < HEADS; head++) {
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                bool there = head < own.count && first + i < parts;
                sums[head] = fmaf(there ? weights[head * parts + first + i] : 0.0f, numerators[head][i], sums[head]);
            }
        }
    }
};

// Four elements a lane of some parts of a head's partial sums, all of which are under way before the first is used.
struct FetchedFours {
    static constexpr int PARTS = 12;
    Eight numerators[PARTS];

    __device__ void fetch(const AttentionArguments& arguments, unsigned long long query, unsigned int parts, unsigned int first,
                        unsigned int element) {
        const float* from = arguments.numerators + query * arguments.splits * arguments.head_dim + element;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            unsigned int part = first + i;
            numerators[i] = load_if(from + part * arguments.head_dim, part < parts && element < arguments.head_dim);
        }
    }

    __device__ void add(float* sums, const float* weights, unsigned int parts, unsigned int first) const {
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            float weight = first + i < parts ? weights[first + i] : 0.0f;
#pragma unroll
            for (int at = 0; at < 4; at++) {
                sums[at] = fmaf(weight, __uint_as_float(numerators[i].words[at]), sums[at]);
            }
        }
    }
};

// The results of what all blocks of the row put, of several heads, whose elements are whole fours: a warp has a head at a time.
template <class T>
__device__ inline void put_heads_together(const AttentionArguments& arguments, const Heads& own, unsigned int parts, bool share,
                                          const Found& found) {
    unsigned int warp = threadIdx.x / WARP, own_element = threadIdx.x % WARP * 4;
    FetchedFours fetched;
    bool there = warp < own.count;
    // They come while weights are found.
    fetched.fetch(arguments, own.query + (there ? warp : 0), there ? parts : 0, 0, own_element);
    weigh_parts(arguments, own, parts, share, found);
    __syncthreads();
    for (unsigned int head = warp; head < own.count; head += ATTENTION_WARPS) {
        for (unsigned int element = own_element; element < arguments.head_dim; element += 4 * WARP) {
            float sums[4] = {};
            for (unsigned int first = 0; first < parts; first += FetchedFours::PARTS) {
                if (first > 0 || head > warp || element > own_element) {
                    fetched.fetch(arguments, own.query + head, parts, first, element);
                }
                fetched.add(sums, found.values + head * parts, parts, first);
            }
#pragma unroll
            for (int at = 0; at < 4; at++) {
                put_result<T>(arguments, own.query + head, element + at, sums[at] / found.denominators[head]);
            }
        }
    }
}

// The results of what all blocks of the row put.
template <class T, int HEADS>
__device__ inline void put_together(const AttentionArguments& arguments, const Heads& own, unsigned int parts, bool share,
                                    const Found& found) {
    if (HEADS > 1 && arguments.head_dim % 4 == 0) {
        put_heads_together<T>(arguments, own, parts, share, found);
        return;
    }
    Fetched<HEADS> fetched;
    unsigned int element = threadIdx.x;
    // They come while weights are found.
    fetched.fetch(arguments, own, parts, 0, element);
    weigh_parts(arguments, own, parts, share, found);
    __syncthreads();
    while (element < arguments.head_dim) {
        float sums[HEADS] = {};
        for (unsigned int first = 0; first < parts; first += Fetched<HEADS>::PARTS) {
            if (first > 0) {
                fetched.fetch(arguments, own, parts, first, element);
            }
            fetched.add(sums, found.values, own, parts, first);
        }
#pragma unroll
        for (int head = 0; head < HEADS; head++) {
            if (head < own.count) {
                put_result<T>(arguments, own.query + head, element, sums[head] / found.denominators[head]);
            }
        }
        element += ATTENTION_THREADS;
        fetched.fetch(arguments, own, parts, 0, element);
    }
}

// Whether all blocks of this one's row have put their parts, of which the last one to ask is told. `told` is a shared word.
__device__ inline bool is_last(const AttentionArguments& arguments, const Heads& own, unsigned int parts,
                               unsigned int* told) {
    __syncthreads();
    if (threadIdx.x == 0) {
        // What all of the block wrote is there before it counts as arrived.
        __threadfence();
        unsigned int* arrived = arguments.arrived + own.number * arguments.rows + blockIdx.x;
        *told = atomicAdd(arrived, 1u) == parts - 1;
        if (*told) {
            // Nobody else comes; the next attention finds it as this one did.
            *arrived = 0;
        }
        // And what others wrote before they did is read after it.
        __threadfence();
    }
    __syncthreads();
    return *told;
}

// Which queries of this block, a bit each, had a score that left the range.
__device__ inline unsigned int flagged(const Heads& own, const unsigned int* marks) {
    unsigned int bits = 0;
    for (unsigned int head = 0; head < own.count; head++) {
        bits |= marks[head] ? 1u << head : 0u;
    }
    return bits;
}

// Those are computed; flags are as they were before. All threads have read them.
__device__ inline void unflag(const AttentionArguments& arguments, const Heads& own, unsigned int bits) {
    if (threadIdx.x < own.count && bits >> threadIdx.x & 1u) {
        arguments.overflow[own.query + threadIdx.x] = 0;
        if (arguments.recomputed) {
            atomicAdd(arguments.recomputed, 1u);
        }
    }
}
