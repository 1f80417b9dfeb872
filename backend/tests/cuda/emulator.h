// Runs CUDA C kernels on a CPU, to test their logic: included before their sources, which are then C++.
//
// Blocks run one after another, and each thread of a block is a fiber, which runs until it waits for the others of its block
// or warp. So a barrier that not all reach is an error and not a race that happens to go well. Shared memory is filled with
// NaNs before each block. Copies behind the thread's back are done only when the thread waits for them. Tensor cores are
// emulated by the layout of fragments that PTX documents, written apart from the kernels' own.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <csetjmp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <ucontext.h>
#include <vector>

#define PLIMSOLL_EMULATED
#define __global__
#define __device__
#define WARP 32
#define ALL_LANES 0xffffffffu
#define POISON 0xff

struct Dimensions {
    unsigned int x, y, z;
};
static Dimensions threadIdx, blockIdx, blockDim, gridDim;

struct f16;
struct bf16;
static float to_f32(f16 x);
static f16 half_of(float x);

// One copy that has been begun and not been waited for.
struct Copy {
    void* into;
    const void* from;
    bool there;
};

enum State { READY, AT_BLOCK, AT_WARP, DONE };

// Begun once and used again for each block; jumps between fibers ask nothing of the system, as ucontext's own would.
struct Fiber {
    ucontext_t context;
    jmp_buf place;
    bool begun = false;
    std::vector<char> stack;
    State state = DONE;
    // For what came before in the stream.
    bool has_waited = false;
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> groups;
};

// What the lanes of a warp show each other.
struct Exchange {
    uint64_t words[WARP];
    unsigned int a[WARP][4], b[WARP][2];
};

static std::vector<Fiber> fibers(1024);
static std::vector<Exchange> exchanges(WARP);
static jmp_buf scheduler;
static unsigned int current;
static void (*body)(const void*);
static const void* body_arguments;
static std::map<std::string, std::vector<uint64_t>> shared;
static std::vector<uint64_t> dynamic_shared;
static std::string failure;

static void wait_as(State state) {
    fibers[current].state = state;
    if (!_setjmp(fibers[current].place)) {
        _longjmp(scheduler, 1);
    }
}

static void __syncthreads() {
    wait_as(AT_BLOCK);
}

static int __syncthreads_or(int one) {
    static int any;
    any |= one != 0;
    __syncthreads();
    int all = any;
    __syncthreads();
    // All have read it, and nobody has come back.
    any = 0;
    __syncthreads();
    return all;
}

template <class T>
static T __shfl_xor_sync(unsigned int, T value, int mask) {
    unsigned int warp = current / WARP, lane = current % WARP;
    memcpy(&exchanges[warp].words[lane], &value, sizeof value);
    wait_as(AT_WARP);
    T other;
    memcpy(&other, &exchanges[warp].words[lane ^ mask], sizeof other);
    wait_as(AT_WARP);
    return other;
}

template <class T>
static T __shfl_sync(unsigned int, T value, int from) {
    unsigned int warp = current / WARP, lane = current % WARP;
    memcpy(&exchanges[warp].words[lane], &value, sizeof value);
    wait_as(AT_WARP);
    T other;
    memcpy(&other, &exchanges[warp].words[from % WARP], sizeof other);
    wait_as(AT_WARP);
    return other;
}

// Each block has its own, which all its threads find under the same name; it ends with bytes that nobody may write.
static void* shared_array(const char* name, int line, const char* function, size_t bytes) {
    std::string key = std::string(function) + name + std::to_string(line);
    auto& words = shared[key];
    if (words.empty()) {
        words.resize((bytes + 7) / 8 + 2);
        memset(words.data(), POISON, words.size() * 8);
    }
    return words.data();
}

#define SHARED(TYPE, NAME, COUNT)                                                                             \
    TYPE* NAME = (TYPE*)shared_array(#NAME, __LINE__, __PRETTY_FUNCTION__, (COUNT) * sizeof(TYPE))
#define DYNAMIC_SHARED(NAME) void* NAME = dynamic_shared.data()

static float bits_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static uint32_t f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static float __uint_as_float(unsigned int x) {
    return bits_f32(x);
}
static unsigned int __float_as_uint(float x) {
    return f32_bits(x);
}
static float __fadd_rn(float a, float b) {
    return a + b;
}
static float __fsub_rn(float a, float b) {
    return a - b;
}
static float __fmul_rn(float a, float b) {
    return a * b;
}
static float __fdiv_rn(float a, float b) {
    return a / b;
}
#define __expf expf
static float power_of_two(float power) {
    return exp2f(power);
}
static unsigned int lower_halves(unsigned int a, unsigned int b) {
    return (a & 0xffff) | b << 16;
}
static unsigned int upper_halves(unsigned int a, unsigned int b) {
    return a >> 16 | (b & 0xffff0000u);
}
static unsigned int masked_or(unsigned int a, unsigned int b, unsigned int c) {
    return (a & b) | c;
}
// Fibers of a block take turns, and blocks run one after another: what one has written all see.
static void __threadfence() {}
static unsigned int atomicAdd(unsigned int* at, unsigned int by) {
    unsigned int before = *at;
    *at += by;
    return before;
}

struct Kernel {
    void (*body)(const void*);
    size_t arguments, threads;
};
static std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> all;
    return all;
}
struct Registration {
    Registration(const char* name, Kernel kernel) {
        kernels()[name] = kernel;
    }
};

#define EMULATED(NAME, ARGUMENTS, THREADS, FIRST, ...)                                                         \
    static void emulated_##NAME(const void* arguments) {                                                     \
        FIRST;                                                                                               \
        __VA_ARGS__(*(const ARGUMENTS*)arguments);                                                           \
    }                                                                                                        \
    static Registration registered_##NAME(#NAME, {emulated_##NAME, sizeof(ARGUMENTS), THREADS});
#define KERNEL_OF_BLOCKS(NAME, ARGUMENTS, THREADS, BLOCKS, ...)                                                \
    EMULATED(NAME, ARGUMENTS, THREADS, wait_for_previous(), __VA_ARGS__)
#define KERNEL(NAME, ARGUMENTS, THREADS, ...) KERNEL_OF_BLOCKS(NAME, ARGUMENTS, THREADS, 1, __VA_ARGS__)
#define EARLY_KERNEL(NAME, ARGUMENTS, THREADS, BLOCKS, ...) EMULATED(NAME, ARGUMENTS, THREADS, let_next_begin(), __VA_ARGS__)

static void let_next_begin() {}
static void wait_for_previous() {
    fibers[current].has_waited = true;
}

// Nearer there is nothing.
static void bring_nearer(const void* from, unsigned int bytes) {
    if ((uintptr_t)from % 16 || bytes % 16 || bytes == 0) {
        failure = "no whole sixteens of bytes are brought nearer";
    }
}
static unsigned int multiprocessors() {
    return 1;
}

#include "elements.cuh"

// Halves by their definition: sign, 5 bits of exponent, 10 of fraction.
static float to_f32(f16 x) {
    int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    float sign = x.bits >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) {
        return fraction ? NAN : sign * INFINITY;
    }
    return sign * (exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24));
}

static f16 half_of(float x) {
    unsigned short sign = f32_bits(x) >> 16 & 0x8000;
    float size = fabsf(x);
    if (x != x) {
        return f16{0x7fff};
    }
    if (size == 0.0f) {
        return f16{sign};
    }
    if (size >= 65520.0f) {
        return f16{(unsigned short)(sign | 0x7c00)};
    }
    int exponent;
    frexpf(size, &exponent);
    // The distance between neighbours; below 2^-14 it stays.
    int step = (exponent < -13 ? -13 : exponent) - 11;
    long count = lrintf(ldexpf(size, -step));
    long biased = step + 24;
    return f16{(unsigned short)(sign | (unsigned short)(biased * 1024 + count))};
}

// A GPU faults there.
static void look_at_place(const void* place) {
    if ((uintptr_t)place % 16) {
        failure = "16 bytes are loaded from a place that is no multiple of 16";
    }
}

static Eight load_weights(const void* from, bool there) {
    Eight loaded = {};
    if (there) {
        look_at_place(from);
        memcpy(&loaded, from, sizeof loaded);
    }
    return loaded;
}
static Eight load_common_weights(const void* from, bool there) {
    return load_weights(from, there);
}
static Eight load_with_neighbours(const void* from, bool there) {
    return load_weights(from, there);
}
// What may have been written by what came before.
static Eight load_if(const void* from, bool there) {
    if (!fibers[current].has_waited) {
        failure = "a kernel reads before it waits for what came before";
    }
    return load_weights(from, there);
}
static Eight load_once(const void* from, bool there) {
    return load_if(from, there);
}

static void copy_behind(void* into, const void* from, bool there) {
    look_at_place(into);
    if (there) {
        look_at_place(from);
    }
    fibers[current].open.push_back(Copy{into, from, there});
}
static void end_of_group() {
    fibers[current].groups.push_back(std::move(fibers[current].open));
    fibers[current].open.clear();
}
template <int PENDING>
static void wait_for_groups() {
    auto& groups = fibers[current].groups;
    while (groups.size() > PENDING) {
        for (const Copy& copy : groups.front()) {
            memset(copy.into, 0, 16);
            if (copy.there) {
                memcpy(copy.into, copy.from, 16);
            }
        }
        groups.pop_front();
    }
}

// mma.m16n8k16: A is 16 x 16, B 16 x 8, sums 16 x 8. A lane is row lane / 4 of A and of the sums, column lane / 4 of B; its
// registers hold pairs along k (A, B) or along columns (sums). Registers 1 and 3 of A are eight rows further down, 2 and 3
// eight columns to the right; register 1 of B is eight rows further down.
template <class T>
static float element_of(unsigned int word, int half) {
    return to_f32(T{(unsigned short)(word >> 16 * half)});
}

template <class T>
struct Mma {
    static constexpr bool HAS = true;
    static unsigned int pair(float low, float high) {
        return narrowed<T>(low).bits | (unsigned int)narrowed<T>(high).bits << 16;
    }
    static float a(const Exchange& all, int row, int k) {
        int lane = row % 8 * 4 + k % 8 / 2, word = row / 8 + k / 8 * 2;
        return element_of<T>(all.a[lane][word], k % 2);
    }
    static float b(const Exchange& all, int k, int column) {
        return element_of<T>(all.b[column * 4 + k % 8 / 2][k / 8], k % 2);
    }
    static void add(float* sums, const unsigned int* a_words, const unsigned int* b_words) {
        unsigned int warp = current / WARP, lane = current % WARP;
        Exchange& all = exchanges[warp];
        memcpy(all.a[lane], a_words, sizeof all.a[lane]);
        memcpy(all.b[lane], b_words, sizeof all.b[lane]);
        wait_as(AT_WARP);
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            for (int k = 0; k < 16; k++) {
                sums[i] += a(all, row, k) * b(all, k, column);
            }
        }
        wait_as(AT_WARP);
    }
};

#ifdef LIKE_TURING
#define HAS_TF32 0
template <>
struct Mma<bf16> {
    static constexpr bool HAS = false;
    static unsigned int pair(float, float) {
        failure = "Turing's tensor cores know no bf16";
        return 0;
    }
    static void add(float*, const unsigned int*, const unsigned int*) {
        failure = "Turing's tensor cores know no bf16";
    }
};
#else
#define HAS_TF32 1
#endif
// Ten bits of fraction: to nearest, ties away from zero. Tensor cores do not look at the others.
static unsigned int to_tf32(float x) {
    return f32_bits(x) + 0x1000u & ~0x1fffu;
}

// mma.m16n8k8 of TF32: A is 16 x 8, B 8 x 8. A lane is row lane / 4 of A, column lane / 4 of B, and lane % 4 along k; registers 1
// and 3 of A are eight rows further down, 2 and 3 four columns to the right; register 1 of B is four rows further down.
static void add_tf32(float* sums, const unsigned int* a, const unsigned int* b) {
    if (!HAS_TF32) {
        failure = "Turing's tensor cores know no TF32";
        return;
    }
    unsigned int warp = current / WARP, lane = current % WARP;
    Exchange& all = exchanges[warp];
    memcpy(all.a[lane], a, sizeof all.a[lane]);
    memcpy(all.b[lane], b, sizeof all.b[lane]);
    wait_as(AT_WARP);
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 8; k++) {
            unsigned int left = all.a[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2];
            unsigned int right = all.b[column * 4 + k % 4][k / 4];
            sums[i] += bits_f32(left & ~0x1fffu) * bits_f32(right & ~0x1fffu);
        }
    }
    wait_as(AT_WARP);
}

static void fiber_main() {
    for (;;) {
        body(body_arguments);
        wait_as(DONE);
    }
}

// Runs the current fiber until it waits.
static void __attribute__((noinline)) go_on() {
    Fiber& fiber = fibers[current];
    if (_setjmp(scheduler)) {
        return;
    }
    if (fiber.begun) {
        _longjmp(fiber.place, 1);
    }
    fiber.begun = true;
    fiber.stack.resize(64 << 10);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
    setcontext(&fiber.context);
}

static bool all_wait(unsigned int from, unsigned int to, State state) {
    bool any = false;
    for (unsigned int i = from; i < to; i++) {
        any |= fibers[i].state == state;
        if (fibers[i].state != state && fibers[i].state != DONE) {
            return false;
        }
    }
    return any;
}

static void release(unsigned int from, unsigned int to) {
    for (unsigned int i = from; i < to; i++) {
        fibers[i].state = fibers[i].state == DONE ? DONE : READY;
    }
}

static void run_block(unsigned int threads) {
    shared.clear();
    memset(dynamic_shared.data(), POISON, dynamic_shared.size() * 8);
    for (unsigned int i = 0; i < threads; i++) {
        Fiber& fiber = fibers[i];
        fiber.open.clear();
        fiber.groups.clear();
        fiber.has_waited = false;
        // One that an earlier block left at a barrier begins anew.
        fiber.begun = fiber.begun && fiber.state == DONE;
        fiber.state = READY;
    }
    for (bool went_on = true; went_on;) {
        went_on = false;
        for (unsigned int i = 0; i < threads; i++) {
            if (fibers[i].state == READY) {
                current = i;
                threadIdx = Dimensions{i, 0, 0};
                go_on();
                went_on = true;
            }
        }
        for (unsigned int warp = 0; warp < threads; warp += WARP) {
            if (all_wait(warp, warp + WARP, AT_WARP)) {
                release(warp, warp + WARP);
                went_on = true;
            }
        }
        if (all_wait(0, threads, AT_BLOCK)) {
            release(0, threads);
            went_on = true;
        }
    }
    for (unsigned int i = 0; i < threads; i++) {
        if (fibers[i].state != DONE) {
            failure = "not all threads of a block reached the same barrier";
            return;
        }
        if (!fibers[i].has_waited) {
            failure = "not all threads of a kernel waited for what came before";
            return;
        }
    }
}

// Blocks that a launch has one after another, from the first or from the last on: a kernel may count on neither.
static Dimensions block_of(unsigned long number, bool backwards) {
    unsigned long all = (unsigned long)gridDim.x * gridDim.y * gridDim.z;
    number = backwards ? all - 1 - number : number;
    unsigned long line = number / gridDim.x;
    return Dimensions{(unsigned int)(number % gridDim.x), (unsigned int)(line % gridDim.y), (unsigned int)(line / gridDim.y)};
}

// Runs a kernel; what went wrong, or null.
extern "C" const char* emulate(const char* name, const unsigned int* grid, unsigned int threads, unsigned int shared_bytes,
                               const void* arguments, size_t argument_bytes) {
    failure.clear();
    auto found = kernels().find(name);
    if (found == kernels().end()) {
        failure = std::string("no kernel is called ") + name;
    } else if (found->second.arguments != argument_bytes) {
        failure = std::string(name) + " takes " + std::to_string(found->second.arguments) + " bytes of arguments, " +
                  std::to_string(argument_bytes) + " given";
    } else if (threads % WARP || threads > found->second.threads) {
        failure = std::string(name) + " is for at most " + std::to_string(found->second.threads) + " threads, in whole warps";
    }
    if (!failure.empty()) {
        return failure.c_str();
    }
    body = found->second.body;
    body_arguments = arguments;
    // What lies behind must stay as it is.
    dynamic_shared.resize(shared_bytes / 8 + 2);
    blockDim = Dimensions{threads, 1, 1};
    gridDim = Dimensions{grid[0], grid[1], grid[2]};
    static unsigned long launches;
    bool backwards = launches++ % 2;
    for (unsigned long number = 0; number < (unsigned long)grid[0] * grid[1] * grid[2]; number++) {
        blockIdx = block_of(number, backwards);
        run_block(threads);
        for (size_t i = shared_bytes; i < dynamic_shared.size() * 8; i++) {
            if (((unsigned char*)dynamic_shared.data())[i] != POISON) {
                failure = "shared memory was written behind its end";
            }
        }
        if (!failure.empty()) {
            failure = std::string(name) + ": " + failure;
            return failure.c_str();
        }
    }
    return nullptr;
}

// The name of the kernel of this number, or null.
extern "C" const char* kernel_name(size_t number) {
    auto at = kernels().begin();
    for (size_t i = 0; i < number && at != kernels().end(); i++) {
        ++at;
    }
    return at == kernels().end() ? nullptr : at->first.c_str();
}
