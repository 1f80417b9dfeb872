// Split linear layers (HeteGen): some rows of a layer's outputs, f32 as sums are and without their bias, take their places
// among all rows. What a layer reads is f32 too, with numbers that the stored type has.
#include "activated.cuh"

struct PartArguments {
    void* y;           // where the first token's first of these rows goes, [tokens, width]
    const float* part; // [tokens, rows]
    const void* bias;  // [rows], or null
    unsigned long long count; // tokens times rows
    unsigned int rows, width;
    unsigned int activation;
};

// Whole outputs are rounded to the stored type, before anything else is done with them.
template <class T>
__device__ inline float output_of(const PartArguments& arguments, unsigned long long i) {
    const T* bias = (const T*)arguments.bias;
    float sum = arguments.part[i] + (bias ? to_f32(bias[i % arguments.rows]) : 0.0f);
    return to_f32(narrowed<T>(sum));
}

__device__ inline unsigned long long place_of(const PartArguments& arguments, unsigned long long i) {
    return i / arguments.rows * arguments.width + i % arguments.rows;
}

template <class T>
__device__ void put_part(const PartArguments& arguments) {
    EACH(i, arguments.count) {
        ((T*)arguments.y)[place_of(arguments, i)] = narrowed<T>(output_of<T>(arguments, i));
    }
}

template <class T>
__device__ void add_part(const PartArguments& arguments) {
    EACH(i, arguments.count) {
        T* y = (T*)arguments.y + place_of(arguments, i);
        *y = narrowed<T>(to_f32(*y) + output_of<T>(arguments, i));
    }
}

// To what the next layer reads.
template <class T>
__device__ void activate_part(const PartArguments& arguments) {
    EACH(i, arguments.count) {
        float y = activated(output_of<T>(arguments, i), arguments.activation);
        ((float*)arguments.y)[place_of(arguments, i)] = to_f32(narrowed<T>(y));
    }
}

// Where the gate's outputs are, which are activated and multiplied.
template <class T>
__device__ void gate_part(const PartArguments& arguments) {
    EACH(i, arguments.count) {
        float* y = (float*)arguments.y + place_of(arguments, i);
        *y = to_f32(narrowed<T>(activated(*y, arguments.activation) * output_of<T>(arguments, i)));
    }
}

struct WidthArguments {
    void* y;
    const void* x;
    unsigned long long count;
};

template <class T>
__device__ void to_wide(const WidthArguments& arguments) {
    EACH(i, arguments.count) {
        ((float*)arguments.y)[i] = to_f32(((const T*)arguments.x)[i]);
    }
}

template <class T>
__device__ void to_stored(const WidthArguments& arguments) {
    EACH(i, arguments.count) {
        ((T*)arguments.y)[i] = narrowed<T>(((const float*)arguments.x)[i]);
    }
}

KERNEL_OF_TYPES(put_part, PartArguments, 256)
KERNEL_OF_TYPES(add_part, PartArguments, 256)
KERNEL_OF_TYPES(activate_part, PartArguments, 256)
KERNEL_OF_TYPES(gate_part, PartArguments, 256)
KERNEL_OF_TYPES(to_wide, WidthArguments, 256)
KERNEL_OF_TYPES(to_stored, WidthArguments, 256)
