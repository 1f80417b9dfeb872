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

template <class T>
__device__ void rotary(const RotaryArguments& arguments) {
    unsigned int pairs = arguments.pairs;
    unsigned long long angles = (unsigned long long)arguments.positions[blockIdx.x] * pairs;
    T* token = (T*)arguments.heads + (unsigned long long)blockIdx.x * arguments.head_count * arguments.head_dim;
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
