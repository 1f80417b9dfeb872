// The cache of sequences at different places: each has blocks of some tokens of its own, which lie anywhere. A block holds
// whole records, [position][key, then value][key/value head].
#pragma once
#include "stored.cuh"

// Where the record of a position is. `own` says where a sequence's blocks are, in the order of positions.
__device__ inline unsigned char* block_record(const unsigned long long* own, unsigned int block_tokens,
                                              unsigned int record_bytes, unsigned int position) {
    unsigned char* block = (unsigned char*)own[position / block_tokens];
    return block + (unsigned long long)(position % block_tokens) * record_bytes;
}

struct OwnBlocks {
    const unsigned long long* blocks; // where each is, sequence after sequence
    const unsigned int* starts;       // [sequences]: which of them is the first of each
    const unsigned int* contexts;     // [sequences]: positions of each, the newest included
    const unsigned int* tokens;       // [sequences + 1]: each one's first new token among all, and past the last
    unsigned int block_tokens;        // positions that a block holds
};

// Arguments that name pages which all sequences share, with blocks in place of these. Rows begin with the first sequence's.
template <class A>
struct Mixed : A, OwnBlocks {};

// Where a row's record of a position is, and which row of that record it is.
template <class A>
__device__ inline unsigned char* record_for(const A& arguments, unsigned int, unsigned int position) {
    return record_at(arguments, position);
}

template <class A>
__device__ inline unsigned char* record_for(const Mixed<A>& arguments, unsigned int row, unsigned int position) {
    const unsigned long long* own = arguments.blocks + arguments.starts[row / arguments.kv_heads];
    return block_record(own, arguments.block_tokens, arguments.record_bytes, position);
}

// Those of the block of tokens that a position is in.
template <class A>
__device__ inline Run run_at(const Mixed<A>& arguments, unsigned int position) {
    const unsigned long long* own = arguments.blocks + arguments.starts[blockIdx.x / arguments.kv_heads];
    unsigned int block = position / arguments.block_tokens, first = block * arguments.block_tokens;
    const unsigned char* begin = (const unsigned char*)own[block];
    return Run{begin - (unsigned long long)first * arguments.record_bytes, first, first + arguments.block_tokens};
}

template <class A>
__device__ inline unsigned int within_record(const A&, unsigned int row) {
    return row;
}

template <class A>
__device__ inline unsigned int within_record(const Mixed<A>& arguments, unsigned int row) {
    return row % arguments.kv_heads;
}

// A block's own row, where blocks are numbered by rows.
template <class A>
__device__ inline unsigned char* record_at(const Mixed<A>& arguments, unsigned int position) {
    return record_for(arguments, blockIdx.x, position);
}

template <class A>
__device__ inline unsigned int row_of_record(const A& arguments) {
    return within_record(arguments, blockIdx.x);
}

// How many rows a record has.
template <class A>
__device__ inline unsigned int rows_of_record(const A& arguments) {
    return arguments.rows;
}

template <class A>
__device__ inline unsigned int rows_of_record(const Mixed<A>& arguments) {
    return arguments.kv_heads;
}
