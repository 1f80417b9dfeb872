// Attention of a prompt's queries over their cache. A query sees the positions up to its own, from its text's first on, and
// those in the window where one slides. Here is which block computes what, and how it does on CUDA cores.
#pragma once
#include "mixed.cuh"

// Threads that share a query on CUDA cores, and positions that it takes at a time: each has a score of a tile, and the elements
// of the result that are so many apart.
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

// What a block computes: neighbouring queries of one head.
struct Asking {
    unsigned int row;              // of those that lie here
    unsigned int count, position;  // queries, and the position of the first
    unsigned int first;            // the first position of the text
    unsigned int begin, end;       // positions that any of the queries sees
    unsigned int stride;           // elements from one query to the next
    unsigned long long at;         // the first query's elements
};

// The blocks of some heads, whose keys and values a cache keeps at once, come one after another, and of these the ones first that
// see the most: x is the head, y the queries from the last on, z the heads. Without queries `begin` and `end` are 0.
template <int QUERIES, class A>
__device__ inline Asking asking_of(const A& arguments) {
    Asking asking = {};
    unsigned int tile = (gridDim.y - 1 - blockIdx.y) * QUERIES, head = blockIdx.x % arguments.group;
    asking.row = blockIdx.z * (gridDim.x / arguments.group) + blockIdx.x / arguments.group;
    if (asking.row >= arguments.rows) {
        return asking;
    }
    unsigned int row = arguments.row_start + asking.row, sequence = row / arguments.kv_heads;
    Asked asked = asked_by(arguments, sequence);
    // Another prompt is longer.
    if (tile >= asked.count) {
        return asking;
    }
    asking.count = least(QUERIES, asked.count - tile);
    asking.position = asked.start + tile;
    asking.first = arguments.firsts ? arguments.firsts[sequence] : 0;
    asking.begin = asking.first;
    if (arguments.window && asking.position + 1 > arguments.window) {
        asking.begin = most(asking.begin, asking.position + 1 - arguments.window);
    }
    asking.end = asking.position + asking.count;
    asking.stride = arguments.kv_heads * arguments.group * arguments.head_dim;
    asking.at = ((unsigned long long)asked.first + tile) * asking.stride;
    asking.at += (unsigned long long)(row % arguments.kv_heads * arguments.group + head) * arguments.head_dim;
    return asking;
}

// Where the key of a position is. A record's bytes are a number of 32 bits.
template <class S, class A>
__device__ inline const unsigned char* key_of(const A& arguments, unsigned int row, unsigned int position) {
    return record_for(arguments, row, position) + within_record(arguments, row) * S::bytes(arguments.head_dim);
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

// Unpacks keys and values of the positions from `base` on; those from the end on are zero.
template <class S, class A>
__device__ inline void load_tile(const A& arguments, const Asking& asking, float* keys, float* values, unsigned int base) {
    unsigned int width = arguments.head_dim, eights = (width + 7) / 8;
    unsigned int beyond = rows_of_record(arguments) * S::bytes(width);
    for (unsigned int i = threadIdx.x; i < PROMPT_KEYS * eights; i += blockDim.x) {
        unsigned int place = i / eights, at = i % eights * 8;
        float key[8] = {}, value[8] = {};
        if (base + place < asking.end) {
            const unsigned char* head = key_of<S>(arguments, asking.row, base + place);
            S stored;
            stored.load(head, at, width);
            stored.widened(key);
            stored.load(head + beyond, at, width);
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

// Attention of as many queries as a block has threads for. Keys and values are unpacked to shared memory once for all of them,
// and the softmax is kept up as they come (Milakov and Gimelshein 2018). Results take the place of the queries, which no other
// block reads; those of padding have seen nothing and stay as they are.
template <class T, class S, class A>
__device__ inline void attend_plainly(const A& arguments, const Asking& asking, void* shared) {
    unsigned int width = arguments.head_dim, together = blockDim.x / PROMPT_KEYS;
    float* queries = (float*)shared;                // [together, width]
    float* keys = queries + together * width;       // a column more, so that a query's threads read different banks
    float* values = keys + PROMPT_KEYS * (width + 1);
    float* weights = values + PROMPT_KEYS * width;  // [together, PROMPT_KEYS]
    T* from = (T*)arguments.queries + asking.at;
    unsigned int query = threadIdx.x / PROMPT_KEYS, lane = threadIdx.x % PROMPT_KEYS;
    for (unsigned int i = lane; i < width; i += PROMPT_KEYS) {
        queries[query * width + i] = query < asking.count ? to_f32(from[query * asking.stride + i]) : 0.0f;
    }
    unsigned int position = asking.position + query;
    float sums[PROMPT_ELEMENTS] = {};
    float maximum = -__uint_as_float(0x7f800000u), denominator = 0.0f;
    for (unsigned int base = asking.begin; base < asking.end; base += PROMPT_KEYS) {
        // Nobody reads the tile before any more.
        __syncthreads();
        load_tile<S>(arguments, asking, keys, values, base);
        __syncthreads();
        float score = 0.0f;
        for (unsigned int i = 0; i < width; i++) {
            score = fmaf(queries[query * width + i], keys[lane * (width + 1) + i], score);
        }
        score *= arguments.scale;
        bool seen = base + lane <= position && query < asking.count;
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
    if (query < asking.count && position >= asking.first) {
#pragma unroll
        for (int i = 0; i < PROMPT_ELEMENTS; i++) {
            unsigned int at = i * PROMPT_KEYS + lane;
            if (at < width) {
                from[query * asking.stride + at] = narrowed<T>(sums[i] / denominator);
            }
        }
    }
}
