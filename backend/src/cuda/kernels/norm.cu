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

template <class T>
__device__ void write_normal(const NormArguments& arguments, const T* x, float centre, float factor) {
    const T* weight = (const T*)arguments.weight;
    const T* bias = (const T*)arguments.bias;
    T* y = (T*)arguments.y + (unsigned long long)blockIdx.x * arguments.width;
    for (unsigned int i = threadIdx.x; i < arguments.width; i += blockDim.x) {
        float normal = (to_f32(x[i]) - centre) * factor * to_f32(weight[i]);
        y[i] = narrowed<T>(bias ? normal + to_f32(bias[i]) : normal);
    }
}

template <class T>
__device__ void layer_norm(const NormArguments& arguments) {
    SHARED(float, parts, WARP);
    const T* x = (const T*)arguments.x + (unsigned long long)blockIdx.x * arguments.width;
    float sum = 0.0f;
    for (unsigned int i = threadIdx.x; i < arguments.width; i += blockDim.x) {
        sum += to_f32(x[i]);
    }
    float mean = block_sum(sum, parts) / arguments.width;
    float squares = 0.0f;
    for (unsigned int i = threadIdx.x; i < arguments.width; i += blockDim.x) {
        float off = to_f32(x[i]) - mean;
        squares += off * off;
    }
    float variance = block_sum(squares, parts) / arguments.width;
    write_normal(arguments, x, mean, 1.0f / sqrtf(variance + arguments.epsilon));
}

template <class T>
__device__ void rms_norm(const NormArguments& arguments) {
    SHARED(float, parts, WARP);
    const T* x = (const T*)arguments.x + (unsigned long long)blockIdx.x * arguments.width;
    float squares = 0.0f;
    for (unsigned int i = threadIdx.x; i < arguments.width; i += blockDim.x) {
        squares += to_f32(x[i]) * to_f32(x[i]);
    }
    float mean_square = block_sum(squares, parts) / arguments.width;
    write_normal(arguments, x, 0.0f, 1.0f / sqrtf(mean_square + arguments.epsilon));
}

KERNEL_OF_TYPES(layer_norm, NormArguments, 256)
KERNEL_OF_TYPES(rms_norm, NormArguments, 256)
