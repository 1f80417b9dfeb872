// LayerNorm and RMSNorm. A block a row, which it reads again for each sum: the second time from a cache.
#include "reduce.cuh"

struct NormArguments {
    const void* x;      // [blocks, width]
    const void* weight; // [width]
    const void* bias;   // [width], or null
    void* y;            // [blocks, width]
    unsigned int width;
    float epsilon;
};

// Eights of a row; none where its elements have to be taken one by one.
__device__ inline unsigned int eights_of(const NormArguments& arguments) {
    bool all = has_eights(arguments.x) && has_eights(arguments.weight) && has_eights(arguments.bias) && has_eights(arguments.y);
    return all && arguments.width % 8 == 0 ? arguments.width / 8 : 0;
}

struct Value {
    __device__ inline float of(float x) const { return x; }
};

struct Square {
    float centre;
    __device__ inline float of(float x) const { return (x - centre) * (x - centre); }
};

// The sum over a row.
template <class T, class WAY>
__device__ inline float row_sum(const NormArguments& arguments, const T* x, WAY way, float* parts) {
    unsigned int eights = eights_of(arguments);
    float sum = 0.0f;
    for (unsigned int i = threadIdx.x; i < eights; i += blockDim.x) {
        float some[8];
        widen<T>(((const Eight*)x)[i], some);
#pragma unroll
        for (int at = 0; at < 8; at++) {
            sum += way.of(some[at]);
        }
    }
    for (unsigned int i = 8 * eights + threadIdx.x; i < arguments.width; i += blockDim.x) {
        sum += way.of(to_f32(x[i]));
    }
    return block_sum(sum, parts);
}

template <class T>
__device__ void write_normal(const NormArguments& arguments, const T* x, float centre, float factor) {
    const T *weight = (const T*)arguments.weight, *bias = (const T*)arguments.bias;
    T* y = (T*)arguments.y + (unsigned long long)blockIdx.x * arguments.width;
    unsigned int eights = eights_of(arguments);
    for (unsigned int i = threadIdx.x; i < eights; i += blockDim.x) {
        float some[8], weights[8], biases[8] = {};
        widen<T>(((const Eight*)x)[i], some);
        widen<T>(((const Eight*)weight)[i], weights);
        if (bias) {
            widen<T>(((const Eight*)bias)[i], biases);
        }
#pragma unroll
        for (int at = 0; at < 8; at++) {
            some[at] = (some[at] - centre) * factor * weights[at] + biases[at];
        }
        ((Eight*)y)[i] = narrowed_eight<T>(some);
    }
    for (unsigned int i = 8 * eights + threadIdx.x; i < arguments.width; i += blockDim.x) {
        float normal = (to_f32(x[i]) - centre) * factor * to_f32(weight[i]);
        y[i] = narrowed<T>(bias ? normal + to_f32(bias[i]) : normal);
    }
}

template <class T>
__device__ void layer_norm(const NormArguments& arguments) {
    SHARED(float, parts, WARP);
    const T* x = (const T*)arguments.x + (unsigned long long)blockIdx.x * arguments.width;
    float mean = row_sum(arguments, x, Value{}, parts) / arguments.width;
    float variance = row_sum(arguments, x, Square{mean}, parts) / arguments.width;
    write_normal(arguments, x, mean, 1.0f / sqrtf(variance + arguments.epsilon));
}

template <class T>
__device__ void rms_norm(const NormArguments& arguments) {
    SHARED(float, parts, WARP);
    const T* x = (const T*)arguments.x + (unsigned long long)blockIdx.x * arguments.width;
    float mean_square = row_sum(arguments, x, Square{0.0f}, parts) / arguments.width;
    write_normal(arguments, x, 0.0f, 1.0f / sqrtf(mean_square + arguments.epsilon));
}

KERNEL_OF_TYPES(layer_norm, NormArguments, 256)
KERNEL_OF_TYPES(rms_norm, NormArguments, 256)
