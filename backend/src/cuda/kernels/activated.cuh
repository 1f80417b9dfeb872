// Activation functions by number.
#pragma once
#include "elements.cuh"

// 0 none, 1 ReLU, 2 GELU by tanh, 3 GELU by erf, 4 SiLU.
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
