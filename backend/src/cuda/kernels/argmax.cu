// The greedy choice of a token: the first column of the largest logit. A block a row.
#include "reduce.cuh"

#define ARGMAX_THREADS 1024
// Logits that a thread asks for before it looks at one: a row has one block, so that nothing else covers the way to memory.
#define ARGMAX_AHEAD 4

// What no vocabulary has: whoever looks it up, or reads it, sees that there was no number.
#define NO_TOKEN 0xffffffffu

struct ArgmaxArguments {
    const float* logits;         // [blocks, vocabulary]
    unsigned int* tokens;        // [blocks]; NO_TOKEN where the row holds a NaN
    unsigned int* not_a_number;  // [blocks]: 1 where the row holds a NaN, else 0
    unsigned int vocabulary;
};

struct Best {
    float logit;
    unsigned int column;
};

__device__ inline Best better(Best a, Best b) {
    bool second = b.logit > a.logit || (b.logit == a.logit && b.column < a.column);
    return second ? b : a;
}

__device__ inline Best warp_best(Best best) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        Best other;
        other.logit = __shfl_xor_sync(ALL_LANES, best.logit, offset);
        other.column = __shfl_xor_sync(ALL_LANES, best.column, offset);
        best = better(best, other);
    }
    return best;
}

__device__ void choose(const ArgmaxArguments& arguments) {
    SHARED(float, logits, WARP);
    SHARED(unsigned int, columns, WARP);
    SHARED(float, parts, WARP);
    const float* row = arguments.logits + (unsigned long long)blockIdx.x * arguments.vocabulary;
    Best best = {-__uint_as_float(0x7f800000u), 0xffffffffu};
    float nans = 0.0f;
    for (unsigned int base = threadIdx.x; base < arguments.vocabulary; base += ARGMAX_AHEAD * blockDim.x) {
        float ahead[ARGMAX_AHEAD];
#pragma unroll
        for (int u = 0; u < ARGMAX_AHEAD; u++) {
            unsigned int i = base + u * blockDim.x;
            ahead[u] = i < arguments.vocabulary ? row[i] : -__uint_as_float(0x7f800000u);
        }
#pragma unroll
        for (int u = 0; u < ARGMAX_AHEAD; u++) {
            best = better(best, Best{ahead[u], base + u * blockDim.x});
            nans += ahead[u] != ahead[u] ? 1.0f : 0.0f;
        }
    }
    best = warp_best(best);
    unsigned int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (lane == 0) {
        logits[warp] = best.logit;
        columns[warp] = best.column;
    }
    nans = block_sum(nans, parts);
    if (warp == 0) {
        unsigned int from = lane < blockDim.x / WARP ? lane : 0;
        best = warp_best(Best{logits[from], columns[from]});
        if (lane == 0) {
            arguments.tokens[blockIdx.x] = nans > 0.0f ? NO_TOKEN : best.column;
            arguments.not_a_number[blockIdx.x] = nans > 0.0f ? 1 : 0;
        }
    }
}

KERNEL(argmax, ArgmaxArguments, ARGMAX_THREADS, choose)
