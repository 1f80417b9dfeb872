// Attention of a prompt's queries on CUDA cores, for the heads that tiles.cu does not take: of more than 128 elements, and of
// sizes that are no multiples of 8.
#include "prompt.cuh"

#define PROMPT_THREADS 256
#define PROMPT_QUERIES (PROMPT_THREADS / PROMPT_KEYS)

template <class T, class S, class A>
__device__ void attend_prompt(const A& arguments) {
    DYNAMIC_SHARED(shared);
    Asking asking = asking_of<PROMPT_QUERIES>(arguments);
    if (asking.begin < asking.end) {
        attend_plainly<T, S>(arguments, asking, shared);
    }
}

#define PROMPT(TYPE, STORED, KEPT)                                                                            \
    KERNEL(attend_prompt_##TYPE##_##KEPT, PromptArguments, PROMPT_THREADS, attend_prompt<TYPE, STORED>)

PROMPT(f16, Whole<f16>, whole)
PROMPT(f16, Packed, packed)
PROMPT(bf16, Whole<bf16>, whole)
PROMPT(bf16, Packed, packed)
PROMPT(f16, Ragged<f16>, ragged)
PROMPT(bf16, Ragged<bf16>, ragged)

#define MIXED_PROMPT(TYPE, STORED, KEPT)                                                                      \
    KERNEL(attend_prompt_mixed_##TYPE##_##KEPT, Mixed<PromptArguments>, PROMPT_THREADS, attend_prompt<TYPE, STORED>)

MIXED_PROMPT(f16, Whole<f16>, whole)
MIXED_PROMPT(bf16, Whole<bf16>, whole)
MIXED_PROMPT(f16, Ragged<f16>, ragged)
MIXED_PROMPT(bf16, Ragged<bf16>, ragged)
