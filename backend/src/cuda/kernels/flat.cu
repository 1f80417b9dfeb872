// The flat product, y [m, n] = x [m, k] times weights [n, k], on tensor cores (FlashDecoding++ section 4).
//
// Rows of x are padded to 8 and not to 64: x is the 8-wide operand of an mma, the weights are the 16-high one. A block has
// COLUMNS columns of y, the paper's B_N, all of k one tile after another, and EIGHTS times 8 rows. While a tile is multiplied
// the next ones are copied to other buffers of shared memory: two in the paper's way, four where a tile is small, since what
// is under way must cover the latency of memory. `k` is a multiple of 8.
#include "product.cuh"

#define TILE_K 64
// Eight elements more than a tile is wide, so that a fragment's loads lie in 32 different banks.
#define TILE_STRIDE 72

template <int COLUMNS>
struct Buffers {
    static constexpr int COUNT = COLUMNS >= 128 ? 2 : 4;
};

// Begins to copy a tile of COLUMNS rows of weights and EIGHTS * 8 rows of x; what is not there is zero.
template <class T, int COLUMNS, int EIGHTS>
__device__ inline void copy_tile(const ProductArguments& arguments, T* tile, unsigned int from) {
    unsigned int chunks = (COLUMNS + 8 * EIGHTS) * (TILE_K / 8);
    for (unsigned int i = threadIdx.x; i < chunks; i += blockDim.x) {
        unsigned int row = i / (TILE_K / 8), at = i % (TILE_K / 8) * 8;
        bool weight = row < COLUMNS;
        unsigned int source = weight ? blockIdx.x * COLUMNS + row : blockIdx.y * 8 * EIGHTS + row - COLUMNS;
        bool there = source < (weight ? arguments.n : arguments.m) && from + at < arguments.k;
        const T* operand = (const T*)(weight ? arguments.weights : arguments.x);
        const T* place = operand + (there ? (unsigned long long)source * arguments.k + from + at : 0);
        copy_behind(tile + row * TILE_STRIDE + at, place, there);
    }
}

// Multiplies a tile on tensor cores. A warp has 16 columns of y.
template <class T, int COLUMNS, int EIGHTS>
__device__ inline void multiply(const T* tile, float sums[][4]) {
    unsigned int lane = threadIdx.x % WARP, row = lane / 4, pair = lane % 4 * 2;
    const T* weights = tile + (threadIdx.x / WARP * 16 + row) * TILE_STRIDE + pair;
    const T* x = tile + (COLUMNS + row) * TILE_STRIDE + pair;
#pragma unroll
    for (int at = 0; at < TILE_K; at += 16) {
        unsigned int a[4] = {
            *(const unsigned int*)(weights + at),
            *(const unsigned int*)(weights + at + 8 * TILE_STRIDE),
            *(const unsigned int*)(weights + at + 8),
            *(const unsigned int*)(weights + at + 8 * TILE_STRIDE + 8),
        };
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) {
            const T* rows = x + eight * 8 * TILE_STRIDE + at;
            unsigned int b[2] = {*(const unsigned int*)rows, *(const unsigned int*)(rows + 8)};
            Mma<T>::add(sums[eight], a, b);
        }
    }
}

// The same on CUDA cores, each sum where the tensor cores would leave it.
template <class T, int COLUMNS, int EIGHTS>
__device__ inline void multiply_plain(const T* tile, float sums[][4]) {
    unsigned int lane = threadIdx.x % WARP, row = threadIdx.x / WARP * 16 + lane / 4, pair = lane % 4 * 2;
#pragma unroll
    for (int eight = 0; eight < EIGHTS; eight++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const T* weights = tile + (row + i / 2 * 8) * TILE_STRIDE;
            const T* x = tile + (COLUMNS + eight * 8 + pair + i % 2) * TILE_STRIDE;
            for (int at = 0; at < TILE_K; at++) {
                sums[eight][i] = fmaf(to_f32(weights[at]), to_f32(x[at]), sums[eight][i]);
            }
        }
    }
}

template <class T, int COLUMNS, int EIGHTS, bool PLAIN>
__device__ void flat(const ProductArguments& arguments) {
    DYNAMIC_SHARED(shared);
    constexpr int BUFFERS = Buffers<COLUMNS>::COUNT;
    constexpr int TILE = (COLUMNS + 8 * EIGHTS) * TILE_STRIDE;
    T* tiles = (T*)shared;
    float sums[EIGHTS][4] = {};
    unsigned int count = (arguments.k + TILE_K - 1) / TILE_K;
    for (unsigned int tile = 0; tile < BUFFERS - 1; tile++) {
        if (tile < count) {
            copy_tile<T, COLUMNS, EIGHTS>(arguments, tiles + tile * TILE, tile * TILE_K);
        }
        end_of_group();
    }
    for (unsigned int tile = 0; tile < count; tile++) {
        wait_for_groups<BUFFERS - 2>();
        // All threads' copies of this tile have come, and nobody reads the buffer that is written next.
        __syncthreads();
        unsigned int next = tile + BUFFERS - 1;
        if (next < count) {
            copy_tile<T, COLUMNS, EIGHTS>(arguments, tiles + next % BUFFERS * TILE, next * TILE_K);
        }
        end_of_group();
        const T* now = tiles + tile % BUFFERS * TILE;
        if (PLAIN || !Mma<T>::HAS) {
            multiply_plain<T, COLUMNS, EIGHTS>(now, sums);
        } else {
            multiply<T, COLUMNS, EIGHTS>(now, sums);
        }
    }
    unsigned int lane = threadIdx.x % WARP;
#pragma unroll
    for (int eight = 0; eight < EIGHTS; eight++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned int column = blockIdx.x * COLUMNS + threadIdx.x / WARP * 16 + lane / 4 + i / 2 * 8;
            unsigned int row = (blockIdx.y * EIGHTS + eight) * 8 + lane % 4 * 2 + i % 2;
            if (row < arguments.m && column < arguments.n) {
                put_product<T>(arguments, row, column, sums[eight][i]);
            }
        }
    }
}

#define FLAT(TYPE, COLUMNS, EIGHTS)                                                                            \
    KERNEL(flat_##TYPE##_n##COLUMNS##_e##EIGHTS, ProductArguments, COLUMNS / 16 * WARP,                      \
           flat<TYPE, COLUMNS, EIGHTS, false>)

#define FLAT_OF(TYPE)                                                                                          \
    FLAT(TYPE, 32, 1)                                                                                        \
    FLAT(TYPE, 32, 2)                                                                                        \
    FLAT(TYPE, 32, 4)                                                                                        \
    FLAT(TYPE, 64, 1)                                                                                        \
    FLAT(TYPE, 64, 2)                                                                                        \
    FLAT(TYPE, 64, 4)                                                                                        \
    FLAT(TYPE, 128, 1)                                                                                       \
    FLAT(TYPE, 128, 2)                                                                                       \
    FLAT(TYPE, 128, 4)

FLAT_OF(f16)
FLAT_OF(bf16)

// What stands in where tensor cores lack the type, by its own name so that it is tested everywhere.
KERNEL(flat_plain_bf16_n64_e2, ProductArguments, 64 / 16 * WARP, flat<bf16, 64, 2, true>)
