// A bias and an activation, the gated MLP's product (Shazeer 2020), and the residual sum: element by element, in place.
#include "activated.cuh"

struct ActivationArguments {
    void* x;           // [count]
    const void* other; // bias [width] or null; up, or what is added, [count]
    unsigned long long count;
    unsigned int width;
    unsigned int activation;
};

struct BiasAndActivation {
    unsigned int activation;
    __device__ inline float of(float x, float bias) const { return activated(x + bias, activation); }
};

struct Gated {
    unsigned int activation;
    __device__ inline float of(float gate, float up) const { return activated(gate, activation) * up; }
};

struct Added {
    __device__ inline float of(float x, float added) const { return x + added; }
};

// Eight at a time, beside those of the other operand, which begins again after some; zeros where there is none.
template <class T, class WAY>
__device__ inline void by_eights(const ActivationArguments& arguments, unsigned long long period, WAY way) {
    Eight* x = (Eight*)arguments.x;
    const Eight* other = (const Eight*)arguments.other;
    EACH(i, arguments.count / 8) {
        float own[8], others[8] = {};
        widen<T>(x[i], own);
        if (other) {
            widen<T>(other[period < arguments.count ? i % (period / 8) : i], others);
        }
#pragma unroll
        for (int at = 0; at < 8; at++) {
            own[at] = way.of(own[at], others[at]);
        }
        x[i] = narrowed_eight<T>(own);
    }
}

template <class T, class WAY>
__device__ inline void with_other(const ActivationArguments& arguments, unsigned long long period, WAY way) {
    T* x = (T*)arguments.x;
    const T* other = (const T*)arguments.other;
    if (arguments.count % 8 == 0 && period % 8 == 0 && has_eights(x) && has_eights(other)) {
        by_eights<T>(arguments, period, way);
        return;
    }
    EACH(i, arguments.count) {
        x[i] = narrowed<T>(way.of(to_f32(x[i]), other ? to_f32(other[i % period]) : 0.0f));
    }
}

template <class T>
__device__ void bias_activation(const ActivationArguments& arguments) {
    with_other<T>(arguments, arguments.width, BiasAndActivation{arguments.activation});
}

template <class T>
__device__ void activate_gate(const ActivationArguments& arguments) {
    with_other<T>(arguments, arguments.count, Gated{arguments.activation});
}

template <class T>
__device__ void residual(const ActivationArguments& arguments) {
    with_other<T>(arguments, arguments.count, Added{});
}

KERNEL_OF_TYPES(bias_activation, ActivationArguments, 256)
KERNEL_OF_TYPES(activate_gate, ActivationArguments, 256)
KERNEL_OF_TYPES(residual, ActivationArguments, 256)
