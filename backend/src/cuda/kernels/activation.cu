// A bias and an activation, the gated MLP's product (Shazeer 2020), and the residual sum: element by element, in place.
#include "activated.cuh"

struct ActivationArguments {
    void* x;           // [count]
    const void* other; // bias [width] or null; up, or what is added, [count]
    unsigned long long count;
    unsigned int width;
    unsigned int activation;
};

template <class T>
__device__ void bias_activation(const ActivationArguments& arguments) {
    T* x = (T*)arguments.x;
    const T* bias = (const T*)arguments.other;
    EACH(i, arguments.count) {
        float sum = to_f32(x[i]) + (bias ? to_f32(bias[i % arguments.width]) : 0.0f);
        x[i] = narrowed<T>(activated(sum, arguments.activation));
    }
}

template <class T>
__device__ void activate_gate(const ActivationArguments& arguments) {
    T* gate = (T*)arguments.x;
    const T* up = (const T*)arguments.other;
    EACH(i, arguments.count) {
        gate[i] = narrowed<T>(activated(to_f32(gate[i]), arguments.activation) * to_f32(up[i]));
    }
}

template <class T>
__device__ void residual(const ActivationArguments& arguments) {
    T* x = (T*)arguments.x;
    const T* added = (const T*)arguments.other;
    EACH(i, arguments.count) {
        x[i] = narrowed<T>(to_f32(x[i]) + to_f32(added[i]));
    }
}

KERNEL_OF_TYPES(bias_activation, ActivationArguments, 256)
KERNEL_OF_TYPES(activate_gate, ActivationArguments, 256)
KERNEL_OF_TYPES(residual, ActivationArguments, 256)
