// The operands of a product with weights.
#pragma once
#include "elements.cuh"

struct ProductArguments {
    const void* x;       // [m, k]
    const void* weights; // [n, k]
    const void* bias;    // [n], or null
    void* y;             // [m, n], of the stored type or f32
    unsigned int m, n, k;
    unsigned int wide;   // y is f32, as logits are
};

template <class T>
__device__ inline void put_product(const ProductArguments& arguments, unsigned int row, unsigned int column, float sum) {
    unsigned long long at = (unsigned long long)row * arguments.n + column;
    if (arguments.bias) {
        sum += to_f32(((const T*)arguments.bias)[column]);
    }
    if (arguments.wide) {
        ((float*)arguments.y)[at] = sum;
    } else {
        ((T*)arguments.y)[at] = narrowed<T>(sum);
    }
}
