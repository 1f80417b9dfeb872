// What CUDA C has no word for without a toolkit's headers. The emulator has the same functions in C++.
#pragma once

#define WARP 32
#define ALL_LANES 0xffffffffu

__device__ inline float to_f32(f16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}

__device__ inline f16 half_of(float x) {
    f16 narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}

// Says that the next kernel of the stream need not wait for the end of this one to begin, if it is one that may (sm_90).
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until all that came before in the stream has ended, and what it wrote can be read.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Has the cache beside memory fetch whole sixteens of bytes, while the thread goes on.
__device__ inline void bring_nearer(const void* from, unsigned int bytes) {
// Compilers of CUDA 11 do not know it.
#if __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ >= 12
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
#endif
}

// How many multiprocessors there are, at most.
__device__ inline unsigned int multiprocessors() {
    unsigned int count;
    asm("mov.u32 %0, %%nsmid;" : "=r"(count));
    return count;
}

// Loads 16 bytes, or gives zeros, without a branch between loads: many can be under way.
#define LOAD_IF(LOAD)                                                                                         \
    Eight loaded;                                                                                            \
    asm volatile(                                                                                            \
        "{.reg .pred there; setp.ne.u32 there, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;" \
        "@there " LOAD " {%0,%1,%2,%3}, [%4];}"                                                              \
        : "=&r"(loaded.words[0]), "=&r"(loaded.words[1]), "=&r"(loaded.words[2]), "=&r"(loaded.words[3])      \
        : "l"(from), "r"((unsigned int)there));                                                              \
    return loaded

__device__ inline Eight load_if(const void* from, bool there) {
    LOAD_IF("ld.global.v4.u32");
}

// The same of what nobody reads a second time, which shall not take the place of other things near a multiprocessor.
__device__ inline Eight load_once(const void* from, bool there) {
    LOAD_IF("ld.global.L1::no_allocate.v4.u32");
}

// The same of weights, which nothing writes from the kernel's begin on, be that early. To say so (`.nc`) would let the assembler
// put them behind the wait.
__device__ inline Eight load_weights(const void* from, bool there) {
    LOAD_IF("ld.global.L1::no_allocate.v4.u32");
}

// The same where the thread asks for what lies beside it next.
__device__ inline Eight load_common_weights(const void* from, bool there) {
    LOAD_IF("ld.global.v4.u32");
}

// The same where neighbours ask for what lies around it: memory gives more at a time than they do.
__device__ inline Eight load_with_neighbours(const void* from, bool there) {
#if __CUDA_ARCH__ >= 800
    LOAD_IF("ld.global.L1::no_allocate.L2::256B.v4.u32");
#else
    LOAD_IF("ld.global.L1::no_allocate.L2::128B.v4.u32");
#endif
}

// Copies 16 bytes to shared memory while the thread goes on, or zeroes them there. Before sm_80 it is an ordinary copy.
__device__ inline void copy_behind(void* into, const void* from, bool there) {
#if __CUDA_ARCH__ >= 800
    unsigned int place = (unsigned int)__cvta_generic_to_shared(into);
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes));
#else
    Eight zero = {{0, 0, 0, 0}};
    *(Eight*)into = there ? *(const Eight*)from : zero;
#endif
}

// Ends a group of copies.
__device__ inline void end_of_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;");
#endif
}

// Waits until at most PENDING groups of this thread are under way.
template <int PENDING>
__device__ inline void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Tensor cores add a 16 x 16 by 16 x 8 product to `sums`. Fragments lie as PTX says for mma.m16n8k16 (row, col). A register of
// one has two elements, which `pair` rounds to nearest even.
template <class T>
struct Mma;

template <>
struct Mma<f16> {
    static constexpr bool HAS = true;
    __device__ static unsigned int pair(float low, float high) {
#if __CUDA_ARCH__ >= 800
        unsigned int both;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
#else
        return half_of(low).bits | (unsigned int)half_of(high).bits << 16;
#endif
    }
    __device__ static void add(float* sums, const unsigned int* a, const unsigned int* b) {
#if __CUDA_ARCH__ >= 800
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
        // Turing multiplies 8 columns at a time.
#pragma unroll
        for (int half = 0; half < 2; half++) {
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                         : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                         : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
        }
#endif
    }
};

template <>
struct Mma<bf16> {
#if __CUDA_ARCH__ >= 800
    static constexpr bool HAS = true;
    __device__ static unsigned int pair(float low, float high) {
        unsigned int both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
    __device__ static void add(float* sums, const unsigned int* a, const unsigned int* b) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#else
    // Turing's tensor cores know no bfloat16; who asks computes on CUDA cores.
    static constexpr bool HAS = false;
    __device__ static unsigned int pair(float, float) {
        return 0;
    }
    __device__ static void add(float*, const unsigned int*, const unsigned int*) {}
#endif
};

// 2 to a power; zero where that is smaller than f32 has whole.
__device__ inline float power_of_two(float power) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(power));
    return result;
}

// The lower halves of two words, the first one's lower in the result; and the upper halves.
__device__ inline unsigned int lower_halves(unsigned int a, unsigned int b) {
    unsigned int both;
    asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(both) : "r"(a), "r"(b));
    return both;
}

__device__ inline unsigned int upper_halves(unsigned int a, unsigned int b) {
    unsigned int both;
    asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(both) : "r"(a), "r"(b));
    return both;
}

// (a & b) | c at once, which a compiler makes two of where b and c are constants.
__device__ inline unsigned int masked_or(unsigned int a, unsigned int b, unsigned int c) {
    unsigned int result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

// TF32: the range of f32 with the fraction of f16.
#if __CUDA_ARCH__ >= 800
#define HAS_TF32 1
#else
#define HAS_TF32 0
#endif

// To nearest, as the bits of an f32.
__device__ inline unsigned int to_tf32(float x) {
    unsigned int bits = 0;
#if HAS_TF32
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#endif
    return bits;
}

// Tensor cores add a 16 x 8 by 8 x 8 product to `sums`. Fragments lie as PTX says for mma.m16n8k8 (row, col) of TF32.
__device__ inline void add_tf32(float* sums, const unsigned int* a, const unsigned int* b) {
#if HAS_TF32
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
