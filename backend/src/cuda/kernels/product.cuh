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

// Bytes of a row of weights that are brought nearer at most: of all blocks that wait at once, as much as memory gives meanwhile.
#define NEARER 8192

// While blocks wait for what came before, memory would have nothing to do once their first weights are there: it brings nearer what
// they read next, the rest of a row of which they hold so many elements, or a later block's row.
template <class T>
__device__ inline void bring_row_nearer(const ProductArguments& arguments, unsigned int row, unsigned int held, unsigned int later) {
    bool more = held < arguments.k;
    row = more ? row : later;
    if (arguments.k % 8 == 0 && row < arguments.n) {
        unsigned int first = more ? held : 0, bytes = least((arguments.k - first) * sizeof(T), NEARER);
        bring_nearer((const T*)arguments.weights + (unsigned long long)row * arguments.k + first, bytes);
    }
}

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
