// y [m, n] = x [m, k] times weights [n, k], for few rows of x, on CUDA cores (FlashDecoding++ section 5, implementation A).
// A warp has a column of y and reads its weights once, 16 bytes a lane; up to ROWS rows of x are multiplied with them.
#include "product.cuh"
#include "reduce.cuh"

#define GEMV_THREADS 128
#define GEMV_AHEAD 4

template <class T, int ROWS>
__device__ void gemv(const ProductArguments& arguments) {
    unsigned int column = blockIdx.x * (GEMV_THREADS / WARP) + threadIdx.x / WARP;
    if (column >= arguments.n) {
        return;
    }
    unsigned int k = arguments.k, lane = threadIdx.x % WARP, first = blockIdx.y * ROWS;
    unsigned int rows = least(ROWS, arguments.m - first);
    const T* weights = (const T*)arguments.weights + (unsigned long long)column * k;
    const T* x = (const T*)arguments.x + (unsigned long long)first * k;
    float sums[ROWS] = {};
    // Rows begin on 16 bytes only where their length is a multiple of that.
    unsigned int eights = k % 8 ? 0 : k / 8;
    for (unsigned int base = 0; base < eights; base += WARP * GEMV_AHEAD) {
        Eight loaded[GEMV_AHEAD];
#pragma unroll
        for (int u = 0; u < GEMV_AHEAD; u++) {
            unsigned int at = base + u * WARP + lane;
            Eight zero = {{0, 0, 0, 0}};
            loaded[u] = at < eights ? ((const Eight*)weights)[at] : zero;
        }
#pragma unroll
        for (int u = 0; u < GEMV_AHEAD; u++) {
            unsigned int at = base + u * WARP + lane;
            float w[8], v[8];
            widen<T>(loaded[u], w);
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                if (at < eights && row < rows) {
                    widen<T>(((const Eight*)(x + (unsigned long long)row * k))[at], v);
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        sums[row] = fmaf(w[i], v[i], sums[row]);
                    }
                }
            }
        }
    }
    for (unsigned int at = eights * 8 + lane; at < k; at += WARP) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            if (row < rows) {
                sums[row] = fmaf(to_f32(weights[at]), to_f32(x[(unsigned long long)row * k + at]), sums[row]);
            }
        }
    }
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        float sum = warp_sum(sums[row]);
        if (lane == 0 && row < rows) {
            put_product<T>(arguments, first + row, column, sum);
        }
    }
}

#define GEMV(TYPE, ROWS) KERNEL(gemv_##TYPE##_m##ROWS, ProductArguments, GEMV_THREADS, gemv<TYPE, ROWS>)

GEMV(f16, 1)
GEMV(f16, 2)
GEMV(f16, 4)
GEMV(f16, 8)
GEMV(bf16, 1)
GEMV(bf16, 2)
GEMV(bf16, 4)
GEMV(bf16, 8)
