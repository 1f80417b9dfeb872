// 4-bit groups of 64 elements that share a scale and a minimum (FlexGen section 5), with the bits of the host's form: what
// would fuse to another rounding is written as single operations.
#pragma once
#include "reduce.cuh"

#define GROUP 64
#define GROUP_BYTES 36

// Where a group's scale is, behind the codes; its minimum follows.
#define GROUP_SCALE 32

struct Quantiser {
    float minimum, range, scale;
};

// `taint` is zero where all elements are finite, else NaN.
__device__ inline Quantiser quantiser_of(float minimum, float maximum, float taint) {
    float range = __fsub_rn(maximum, minimum);
    Quantiser made;
    // Zero is added so that it has one sign.
    made.minimum = __fadd_rn(minimum, taint);
    made.range = range > 0.0f ? range : 1.0f;
    made.scale = taint == 0.0f ? __fdiv_rn(range, 15.0f) : 0.0f;
    return made;
}

// Behind 2^23 an f32 has no fraction: adding it rounds to even, and the integer is its last bits.
__device__ inline unsigned int code_of(Quantiser quantiser, float x) {
    float step = __fmul_rn(__fdiv_rn(__fsub_rn(x, quantiser.minimum), quantiser.range), 15.0f);
    return __float_as_uint(__fadd_rn(step, 8388608.0f)) & 15u;
}

// As f16, at most its largest number.
__device__ inline unsigned short kept(float value) {
    float clamped = value < -65504.0f ? -65504.0f : value > 65504.0f ? 65504.0f : value;
    return half_of(clamped).bits;
}

// Packs a group of at most 64 elements with one warp, whose lane i brings elements i and i + 32. What is missing of the
// group repeats its first element, so that it does not widen the span.
template <class T>
__device__ inline void pack_group(const T* elements, unsigned int count, unsigned char* into) {
    unsigned int lane = threadIdx.x % WARP;
    float low = to_f32(elements[lane < count ? lane : 0]);
    float high = to_f32(elements[lane + 32 < count ? lane + 32 : 0]);
    float minimum = -warp_largest(larger(-low, -high));
    float maximum = warp_largest(larger(low, high));
    float taint = warp_sum(__fadd_rn(__fmul_rn(low, 0.0f), __fmul_rn(high, 0.0f)));
    Quantiser quantiser = quantiser_of(minimum, maximum, __fadd_rn(taint, 0.0f));
    into[lane] = (unsigned char)(code_of(quantiser, low) | code_of(quantiser, high) << 4);
    if (lane == 0) {
        unsigned short* ends = (unsigned short*)(into + GROUP_SCALE);
        ends[0] = kept(quantiser.scale);
        ends[1] = kept(quantiser.minimum);
    }
}

__device__ inline unsigned int head_bytes(unsigned int head_dim) {
    return (head_dim + GROUP - 1) / GROUP * GROUP_BYTES;
}
