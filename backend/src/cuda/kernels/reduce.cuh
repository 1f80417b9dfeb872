// Sums of all threads of a warp or block, given to each of them. A block has at most 32 warps, all of them whole.
#pragma once
#include "elements.cuh"

__device__ inline float warp_sum(float value) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, offset);
    }
    return value;
}

__device__ inline float warp_largest(float value) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        value = larger(value, __shfl_xor_sync(ALL_LANES, value, offset));
    }
    return value;
}

// `parts` is shared memory for 32 values, which is free again when this returns.
__device__ inline float block_sum(float value, float* parts) {
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) {
        parts[threadIdx.x / WARP] = value;
    }
    __syncthreads();
    unsigned int warps = blockDim.x / WARP;
    value = warp_sum(threadIdx.x % WARP < warps ? parts[threadIdx.x % WARP] : 0.0f);
    __syncthreads();
    return value;
}
