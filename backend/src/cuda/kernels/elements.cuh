// Stored elements and what every kernel is written with. No header of a toolkit is needed: NVRTC alone compiles this.
#pragma once

struct f16 {
    unsigned short bits;
};

// bfloat16: the upper half of a binary32.
struct bf16 {
    unsigned short bits;
};

// Sixteen bytes, which is as much as one thread loads at once: eight elements.
struct alignas(16) Eight {
    unsigned int words[4];
};

#ifndef PLIMSOLL_EMULATED
// A kernel is a function of one structure, so that all are launched alike. Bodies are templates over the stored type. A
// multiprocessor has registers for so many blocks of it at once. All may begin before what came before them in their stream has
// ended, so that they are there when it has. EARLY_KERNEL is one that has something to do until then: each thread waits by
// wait_for_previous, before it reads or writes what others write or read.
#define EARLY_KERNEL(NAME, ARGUMENTS, THREADS, BLOCKS, ...)                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const ARGUMENTS arguments) {            \
        let_next_begin();                                                                                    \
        __VA_ARGS__(arguments);                                                                              \
    }
#define KERNEL_OF_BLOCKS(NAME, ARGUMENTS, THREADS, BLOCKS, ...)                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const ARGUMENTS arguments) {            \
        let_next_begin();                                                                                    \
        wait_for_previous();                                                                                 \
        __VA_ARGS__(arguments);                                                                              \
    }
#define KERNEL(NAME, ARGUMENTS, THREADS, ...) KERNEL_OF_BLOCKS(NAME, ARGUMENTS, THREADS, 1, __VA_ARGS__)
#define SHARED(TYPE, NAME, COUNT) __shared__ alignas(16) TYPE NAME[COUNT]
#define DYNAMIC_SHARED(NAME) extern __shared__ Eight NAME[]
#include "ptx.cuh"
#endif

#define KERNEL_OF_TYPES(NAME, ARGUMENTS, THREADS)                                                             \
    KERNEL(NAME##_f16, ARGUMENTS, THREADS, NAME<f16>)                                                        \
    KERNEL(NAME##_bf16, ARGUMENTS, THREADS, NAME<bf16>)

__device__ inline float to_f32(bf16 x) {
    return __uint_as_float((unsigned int)x.bits << 16);
}

template <class T>
__device__ inline T narrowed(float x);

template <>
__device__ inline f16 narrowed<f16>(float x) {
    return half_of(x);
}

// To nearest even; a NaN stays one, though its payload would round away.
template <>
__device__ inline bf16 narrowed<bf16>(float x) {
    unsigned int bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return bf16{(unsigned short)(bits >> 16 | 0x40u)};
    }
    return bf16{(unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

template <class T>
__device__ inline void widen(const Eight& from, float* into) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        into[2 * i] = to_f32(T{(unsigned short)(from.words[i] & 0xffffu)});
        into[2 * i + 1] = to_f32(T{(unsigned short)(from.words[i] >> 16)});
    }
}

template <class T>
__device__ inline Eight narrowed_eight(const float* from) {
    Eight into;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        unsigned int low = narrowed<T>(from[2 * i]).bits, high = narrowed<T>(from[2 * i + 1]).bits;
        into.words[i] = low | high << 16;
    }
    return into;
}

// Whether eights can be loaded from there on.
__device__ inline bool has_eights(const void* from) {
    return (unsigned long long)from % 16 == 0;
}

// All elements, whatever the number of threads.
#define EACH(I, COUNT)                                                                                        \
    for (unsigned long long I = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; I < (COUNT);        \
         I += (unsigned long long)gridDim.x * blockDim.x)

__device__ inline unsigned int least(unsigned int a, unsigned int b) {
    return a < b ? a : b;
}

__device__ inline unsigned int most(unsigned int a, unsigned int b) {
    return a > b ? a : b;
}

// The larger one; a NaN in `b` is passed over.
__device__ inline float larger(float a, float b) {
    return b > a ? b : a;
}
