// Attention of a prompt's queries over their cache. A query sees the positions up to its own, from its text's first on, and
// those in the window where one slides.
//
// A block has a row of the cache, QUERIES neighbouring queries of one head, and takes the positions that any of them sees KEYS
// at a time: keys and values are unpacked to shared memory once for all its queries, and the softmax is kept up as they come
// (Milakov and Gimelshein 2018). KEYS threads share a query: each has a score of a tile, and the elements of the result
// that are KEYS apart. Results take the place of the queries, which no other block reads.
#include "mixed.cuh"

#define PROMPT_THREADS 256
#define PROMPT_QUERIES 16
#define PROMPT_KEYS 16
// Elements of a result that a thread has: of heads of 256 at most.
#define PROMPT_ELEMENTS 16

struct PromptArguments {
    void* queries;                   // [sequences, query_len, kv_heads, group, head_dim], then the results
    const unsigned long long* pages; // where each page of the cache is
    const unsigned int* page_ends;   // past the last position that each page holds
    const unsigned int* firsts;      // [sequences]: the first position that is seen; null: 0
    unsigned int page_count;
    unsigned int row_start, rows;    // rows of the cache that lie in this segment
    unsigned int kv_heads, group, head_dim, query_len;
    unsigned int start;              // the position of the first query
    unsigned int window;             // positions that are seen, the query's own included; 0: all
    unsigned int record_bytes;
    float scale;                     // of a product of query and key
};

// A sequence's queries: the first among all, how many, and the position of the first.
struct Asked {
    unsigned int first, count, start;
};

__device__ inline Asked asked_by(const PromptArguments& arguments, unsigned int sequence) {
    return Asked{sequence * arguments.query_len, arguments.query_len, arguments.start};
}

// `query_len` is the longest prompt's.
__device__ inline Asked asked_by(const Mixed<PromptArguments>& arguments, unsigned int sequence) {
    unsigned int first = arguments.tokens[sequence], count = arguments.tokens[sequence + 1] - first;
    return Asked{first, count, arguments.contexts[sequence] - count};
}

// The largest, or the sum, over the threads of a query.
__device__ inline float largest_of_query(float value) {
    for (int offset = PROMPT_KEYS / 2; offset > 0; offset /= 2) {
        value = larger(value, __shfl_xor_sync(ALL_LANES, value, offset));
    }
    return value;
}

__device__ inline float sum_of_query(float value) {
    for (int offset = PROMPT_KEYS / 2; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, offset);
    }
    return value;
}

// Unpacks keys and values of the positions from `base` on; those from `end` on are zero.
template <class S, class A>
__device__ inline void load_tile(const A& arguments, float* keys, float* values, unsigned int base,
                                 unsigned int end) {
    unsigned int width = arguments.head_dim, eights = (width + 7) / 8, head = S::bytes(width);
    for (unsigned int i = threadIdx.x; i < PROMPT_KEYS * eights; i += PROMPT_THREADS) {
        unsigned int place = i / eights, at = i % eights * 8;
        float key[8] = {}, value[8] = {};
        if (base + place < end) {
            const unsigned char* record = record_at(arguments, base + place) + row_of_record(arguments) * head;
            S stored;
            stored.load(record, at, width);
            stored.widened(key);
            stored.load(record + (unsigned long long)rows_of_record(arguments) * head, at, width);
            stored.widened(value);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (at + j < width) {
                keys[place * (width + 1) + at + j] = key[j];
                values[place * width + at + j] = value[j];
            }
        }
    }
}

template <class T, class S, class A>
__device__ void attend_prompt(const A& arguments) {
    DYNAMIC_SHARED(shared);
    unsigned int width = arguments.head_dim;
    float* queries = (float*)shared;                // [PROMPT_QUERIES, width]
    float* keys = queries + PROMPT_QUERIES * width; // a column more, so that a query's threads read different banks
    float* values = keys + PROMPT_KEYS * (width + 1);
    float* weights = values + PROMPT_KEYS * width;  // [PROMPT_QUERIES, PROMPT_KEYS]
    unsigned int row = arguments.row_start + blockIdx.x, sequence = row / arguments.kv_heads;
    unsigned int first = arguments.firsts ? arguments.firsts[sequence] : 0;
    Asked asked = asked_by(arguments, sequence);
    unsigned int tile = blockIdx.y * PROMPT_QUERIES;
    // Another prompt is longer.
    if (tile >= asked.count) {
        return;
    }
    unsigned int count = least(PROMPT_QUERIES, asked.count - tile), end = asked.start + tile + count;
    // Queries of padding alone stay as they are.
    if (end <= first) {
        return;
    }
    unsigned long long stride = (unsigned long long)arguments.kv_heads * arguments.group * width;
    T* from = (T*)arguments.queries + ((unsigned long long)asked.first + tile) * stride +
              (unsigned long long)(row % arguments.kv_heads * arguments.group + blockIdx.z) * width;
    unsigned int query = threadIdx.x / PROMPT_KEYS, lane = threadIdx.x % PROMPT_KEYS;
    for (unsigned int i = lane; i < width; i += PROMPT_KEYS) {
        queries[query * width + i] = query < count ? to_f32(from[query * stride + i]) : 0.0f;
    }
    unsigned int position = asked.start + tile + query, begin = first;
    if (arguments.window && asked.start + tile + 1 > arguments.window) {
        begin = most(begin, asked.start + tile + 1 - arguments.window);
    }
    float sums[PROMPT_ELEMENTS] = {};
    float maximum = -__uint_as_float(0x7f800000u), denominator = 0.0f;
    for (unsigned int base = begin; base < end; base += PROMPT_KEYS) {
        // Nobody reads the tile before any more.
        __syncthreads();
        load_tile<S>(arguments, keys, values, base, end);
        __syncthreads();
        float score = 0.0f;
        for (unsigned int i = 0; i < width; i++) {
            score = fmaf(queries[query * width + i], keys[lane * (width + 1) + i], score);
        }
        score *= arguments.scale;
        bool seen = base + lane <= position && query < count;
        seen = seen && (!arguments.window || base + lane + arguments.window > position);
        float largest = larger(maximum, largest_of_query(seen ? score : maximum));
        float shrink = maximum == largest ? 1.0f : __expf(maximum - largest);
        float weight = seen ? __expf(score - largest) : 0.0f;
        maximum = largest;
        denominator = fmaf(denominator, shrink, sum_of_query(weight));
        weights[threadIdx.x] = weight;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PROMPT_ELEMENTS; i++) {
            unsigned int at = i * PROMPT_KEYS + lane;
            if (at < width) {
                float sum = sums[i] * shrink;
                for (unsigned int key = 0; key < PROMPT_KEYS; key++) {
                    sum = fmaf(weights[query * PROMPT_KEYS + key], values[key * width + at], sum);
                }
                sums[i] = sum;
            }
        }
    }
    // A query of padding has seen nothing.
    if (query < count && position >= first) {
#pragma unroll
        for (int i = 0; i < PROMPT_ELEMENTS; i++) {
            unsigned int at = i * PROMPT_KEYS + lane;
            if (at < width) {
                from[query * stride + at] = narrowed<T>(sums[i] / denominator);
            }
        }
    }
}

#define PROMPT(TYPE, STORED, KEPT)                                                                            \
    KERNEL(attend_prompt_##TYPE##_##KEPT, PromptArguments, PROMPT_THREADS, attend_prompt<TYPE, STORED>)

PROMPT(f16, Whole<f16>, whole)
PROMPT(f16, Packed, packed)
PROMPT(bf16, Whole<bf16>, whole)
PROMPT(bf16, Packed, packed)
PROMPT(f16, Ragged<f16>, ragged)
PROMPT(bf16, Ragged<bf16>, ragged)

#define MIXED_PROMPT(TYPE, STORED, KEPT)                                                                      \
    KERNEL(attend_prompt_mixed_##TYPE##_##KEPT, Mixed<PromptArguments>, PROMPT_THREADS, attend_prompt<TYPE, STORED>)

MIXED_PROMPT(f16, Whole<f16>, whole)
MIXED_PROMPT(bf16, Whole<bf16>, whole)
MIXED_PROMPT(f16, Ragged<f16>, ragged)
MIXED_PROMPT(bf16, Ragged<bf16>, ragged)
