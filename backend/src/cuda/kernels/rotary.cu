// Rotary positions, in place (Su et al. 2021, section 3.2.2). A block a token. Cosines and sines come from tables over all
// positions, which the host computes as the reference does: far into a text the rounding of an angle decides.
#include "elements.cuh"

struct RotaryArguments {
    void* heads;                   // [blocks, heads, head_dim]
    const unsigned int* positions; // [blocks]
    const float* cosines;          // [positions, pairs]
    const float* sines;            // [positions, pairs]
    unsigned int head_count, head_dim, pairs;
    unsigned int adjacent;         // pairs are neighbours, and not half of what is turned apart
};

// Eight numbers of a table.
__device__ inline void load_angles(const float* from, float* into) {
#pragma unroll
    for (int four = 0; four < 2; four++) {
        Eight some = ((const Eight*)from)[four];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            into[4 * four + i] = __uint_as_float(some.words[i]);
        }
    }
}

// Eight pairs at a time, whose halves lie apart.
template <class T>
__device__ inline void turn_eights(const RotaryArguments& arguments, T* token, unsigned long long angles) {
    unsigned int eights = arguments.pairs / 8;
    for (unsigned int i = threadIdx.x; i < arguments.head_count * eights; i += blockDim.x) {
        unsigned int eight = i % eights;
        Eight* first = (Eight*)(token + i / eights * arguments.head_dim) + eight;
        Eight* second = first + eights;
        float x[8], y[8], cosines[8], sines[8];
        widen<T>(*first, x);
        widen<T>(*second, y);
        load_angles(arguments.cosines + angles + 8 * eight, cosines);
        load_angles(arguments.sines + angles + 8 * eight, sines);
#pragma unroll
        for (int at = 0; at < 8; at++) {
            float turned = x[at] * cosines[at] - y[at] * sines[at];
            y[at] = y[at] * cosines[at] + x[at] * sines[at];
            x[at] = turned;
        }
        *first = narrowed_eight<T>(x);
        *second = narrowed_eight<T>(y);
    }
}

template <class T>
__device__ void rotary(const RotaryArguments& arguments) {
    unsigned int pairs = arguments.pairs;
    unsigned long long angles = (unsigned long long)arguments.positions[blockIdx.x] * pairs;
    T* token = (T*)arguments.heads + (unsigned long long)blockIdx.x * arguments.head_count * arguments.head_dim;
    bool aligned = has_eights(arguments.heads) && has_eights(arguments.cosines) && has_eights(arguments.sines);
    if (aligned && !arguments.adjacent && pairs % 8 == 0 && arguments.head_dim % 8 == 0) {
        turn_eights<T>(arguments, token, angles);
        return;
    }
    for (unsigned int i = threadIdx.x; i < arguments.head_count * pairs; i += blockDim.x) {
        unsigned int pair = i % pairs;
        T* head = token + i / pairs * arguments.head_dim;
        T* first = arguments.adjacent ? head + 2 * pair : head + pair;
        T* second = arguments.adjacent ? first + 1 : first + pairs;
        float cosine = arguments.cosines[angles + pair], sine = arguments.sines[angles + pair];
        float x = to_f32(*first), y = to_f32(*second);
        *first = narrowed<T>(x * cosine - y * sine);
        *second = narrowed<T>(y * cosine + x * sine);
    }
}

KERNEL_OF_TYPES(rotary, RotaryArguments, 256)
