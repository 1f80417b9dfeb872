// A bias and an activation, the gated MLP's product (Shazeer 2020), and the residual sum: element by element, in place.
#include "elements.cuh"

struct ActivationArguments {
    void* x;           // [count]
    const void* other; // bias [width] or null; up, or what is added, [count]
    unsigned long long count;
    unsigned int width;
    unsigned int activation; // 0 none, 1 ReLU, 2 GELU by tanh, 3 GELU by erf, 4 SiLU
};

__device__ inline float activated(float x, unsigned int activation) {
    switch (activation) {
    case 1: return x < 0.0f ? 0.0f : x;
    // x / 2 (1 + tanh u) = x sigmoid(2 u); 1.5957691 = 2 sqrt(2 / pi).
    case 2: return x / (1.0f + expf(-1.59576912f * (x + 0.044715f * x * x * x)));
    case 3: return 0.5f * x * erfcf(-0.707106781f * x);
    case 4: return x / (1.0f + expf(-x));
    default: return x;
    }
}

#define EACH(I, COUNT)                                                                                        \
    for (unsigned long long I = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; I < (COUNT);        \
         I += (unsigned long long)gridDim.x * blockDim.x)

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
