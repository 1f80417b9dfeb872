// Attention of one query a sequence over its cache, split over positions (FlashDecoding++ section 3).
//
// Synchronised: partial softmax with a running maximum (Eq. 2). Unified: all partial sums share the scaling factor phi
// (Eq. 3, 4), so none waits for another's maximum, nor is anything scaled anew; where a score leaves low < score - phi < high its
// query is flagged, and the block that puts parts together computes it again by the synchronised way, alone: that is rare. Where a
// model's scores are too wide for any phi, the same launch is synchronised from the start. So nobody asks the host.
//
// Kernels begin early, and so are there at once when what came before has ended; until then there is nothing for them to do.
#include "teams.cuh"
#include "warps.cuh"

// Up to LOOP::HEADS queries of the block's row, of which there are several such `number`s.
template <class T, class LOOP, class A>
__device__ void attend_as(const A& arguments, unsigned int number) {
    SHARED(float, values, LOOP::VALUES);
    SHARED(float, denominators, LOOP::HEADS * ATTENTION_WARPS);
    SHARED(float, maxima, LOOP::HEADS * ATTENTION_WARPS);
    SHARED(unsigned int, marks, LOOP::HEADS);
    SHARED(unsigned int, told, 1);
    Found found = {values, denominators, maxima, marks};
    Seen all = seen_by(arguments);
    unsigned int parts = parts_of(arguments, all);
    if (blockIdx.y >= parts) {
        return;
    }
    Heads own = heads_of(arguments, LOOP::HEADS, number);
    Unified unified = unified_of(arguments);
    LOOP loop;
    loop.ask(arguments, own);
    Seen seen = part_of(arguments, all);
    unsigned int left = 0;
    // At first this block's part; then all positions, for queries that left the range. It is a loop so that a way is there once.
    for (bool again = false;; again = true) {
        bool share = unified.on && !again;
        bool out = false;
        if (share) {
            out = loop.template walk<true>(arguments, unified, seen, own);
        } else {
            loop.template walk<false>(arguments, unified, seen, own);
        }
        loop.put(found, own, arguments.head_dim);
        // Where a block is alone, flags are read only if it set some: they are as far away as memory.
        bool any = __syncthreads_or(out);
        if (again) {
            put_all<T>(arguments, own, found, share, left);
            unflag(arguments, own, left);
            return;
        }
        if (parts == 1 && arguments.arrived) {
            put_all<T>(arguments, own, found, share, ~0u);
            left = any ? flagged(own, arguments.overflow + own.query) : 0;
        } else {
            put_part(arguments, own, found, share);
            if (!arguments.arrived || !is_last(arguments, own, parts, told)) {
                return;
            }
            put_together<T, LOOP::HEADS>(arguments, own, parts, share, found);
            left = share ? flagged(own, marks) : 0;
        }
        if (!left) {
            return;
        }
        // All have read flags, and what the warps found.
        __syncthreads();
        seen = all;
    }
}

template <class T, class LOOP, class A>
__device__ void attend(const A& arguments) {
    wait_for_previous();
    attend_as<T, LOOP>(arguments, blockIdx.z);
}

// Eight heads as twice four.
template <class T, class LOOP, class A>
__device__ void attend_twice(const A& arguments) {
    wait_for_previous();
    for (unsigned int number = 2 * blockIdx.z; number < 2 * blockIdx.z + 2 && number * 4 < arguments.group; number++) {
        attend_as<T, LOOP>(arguments, number);
        __syncthreads();
    }
}

// A block a query: what a launch without `arrived` leaves, put together by one of its own. It is how it was done before
// (Flash-Decoding), and what the benchmark holds the one launch against.
template <class T>
__device__ void combine(const AttentionArguments& arguments) {
    wait_for_previous();
    Seen all = seen_by(arguments);
    unsigned int parts = parts_of(arguments, all);
    Heads own = {(unsigned long long)blockIdx.x * arguments.group + blockIdx.y, 1, 0};
    SHARED(float, weights, PARTS_MOST);
    SHARED(float, denominator, 1);
    put_together<T, 1>(arguments, own, parts, false, Found{weights, denominator, nullptr, nullptr});
}

#define ATTENTION(TYPE, STORED, KEPT, HEADS, SIDE, BLOCKS)                                                     \
    EARLY_KERNEL(attend_##TYPE##_##KEPT##_h##HEADS, AttentionArguments, ATTENTION_THREADS, BLOCKS,              \
              attend<TYPE, Teams<TYPE, STORED, HEADS, SIDE>>)

// Sequences at different places (mixed.cuh).
#define MIXED(TYPE, STORED, KEPT, HEADS, SIDE, BLOCKS)                                                         \
    EARLY_KERNEL(attend_mixed_##TYPE##_##KEPT##_h##HEADS, Mixed<AttentionArguments>, ATTENTION_THREADS, BLOCKS, \
              attend<TYPE, Teams<TYPE, STORED, HEADS, SIDE>>)

// On tensor cores where these multiply TF32.
#if HAS_TF32
#define ON_WARPS(TYPE, DIM) attend<TYPE, Warps<TYPE, DIM>>
#define WARPS_BLOCKS(DIM) (DIM == 64 ? 3 : 2)
#else
#define ON_WARPS(TYPE, DIM) attend_twice<TYPE, Teams<TYPE, Whole<TYPE>, 4, 4>>
#define WARPS_BLOCKS(DIM) 2
#endif

#define WARPS(TYPE, DIM)                                                                                       \
    EARLY_KERNEL(attend_##TYPE##_d##DIM, AttentionArguments, ATTENTION_THREADS, WARPS_BLOCKS(DIM), ON_WARPS(TYPE, DIM)) \
    EARLY_KERNEL(attend_mixed_##TYPE##_d##DIM, Mixed<AttentionArguments>, ATTENTION_THREADS, WARPS_BLOCKS(DIM),     \
              ON_WARPS(TYPE, DIM))

#define ALL(TYPE)                                                                                              \
    ATTENTION(TYPE, Whole<TYPE>, whole, 1, 8, 4)                                                             \
    ATTENTION(TYPE, Whole<TYPE>, whole, 4, 4, 2)                                                             \
    ATTENTION(TYPE, Packed, packed, 1, 4, 4)                                                                 \
    ATTENTION(TYPE, Packed, packed, 4, 4, 2)                                                                 \
    ATTENTION(TYPE, Ragged<TYPE>, ragged, 1, 4, 3)                                                           \
    ATTENTION(TYPE, Ragged<TYPE>, ragged, 4, 4, 2)                                                           \
    MIXED(TYPE, Whole<TYPE>, whole, 1, 8, 4)                                                                 \
    MIXED(TYPE, Whole<TYPE>, whole, 4, 4, 2)                                                                 \
    MIXED(TYPE, Ragged<TYPE>, ragged, 1, 4, 3)                                                               \
    MIXED(TYPE, Ragged<TYPE>, ragged, 4, 4, 2)                                                               \
    WARPS(TYPE, 64)                                                                                          \
    WARPS(TYPE, 128)                                                                                         \
    EARLY_KERNEL(combine_##TYPE, AttentionArguments, ATTENTION_THREADS, 1, combine<TYPE>)

ALL(f16)
ALL(bf16)
