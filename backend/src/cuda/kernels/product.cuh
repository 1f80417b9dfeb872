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

// What products that share x have each by itself. Blocks of one matrix follow those of the one before, up to `end`; where there are
// fewer, the others end with the last.
struct JoinedMatrix {
    const void* weights;
    const void* bias;
    void* y;
    unsigned int n, end;
};

// One product, or up to three that share x, in one launch.
struct JoinedArguments {
    const void* x;
    JoinedMatrix of[3];
    unsigned int m, k, wide;
};

// A block's product, and which of that product's blocks it is.
struct Own {
    ProductArguments arguments;
    unsigned int block;
};

__device__ inline Own own_of(const JoinedArguments& all, unsigned int block) {
    bool second = block >= all.of[0].end, third = block >= all.of[1].end;
// An index would have all of them copied first.
#define OWN(MEMBER) (third ? all.of[2].MEMBER : second ? all.of[1].MEMBER : all.of[0].MEMBER)
    unsigned int before = third ? all.of[1].end : second ? all.of[0].end : 0;
    return {{all.x, OWN(weights), OWN(bias), OWN(y), all.m, OWN(n), all.k, all.wide}, block - before};
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
