// y [m, n] = x [m, k] times weights [n, k] that are kept in 4-bit groups (FlexGen section 5), for few rows of x: implementation A
// of FlashDecoding++ for such weights, which reads 9 bytes where unpacking first moves 73; up to three such products of the same x.
// `k` is a multiple of 16.
//
// Weights lie in bands of 64 rows that share a scale s and a minimum z for each column (groups.cu), so that a row of a band is
// sum (x s) code + sum x z: x is multiplied once for all rows of a block, and codes are summed up as they are. A block has LINES
// lines of a band, each a byte a column with codes of two rows; warps go along k, and a lane has 16 bytes of each line. A code is a
// number without a conversion (`Code`). Where x is infinite, or x s is 2^38 or more, which f16 never reaches, the result is no number,
// though that of unpacked weights might be; and what is far below 2^-67, as in bf16 alone, may be lost.
#include "groups.cuh"
#include "product.cuh"

// At most; fewer where rows are short.
#define PACKED_WARPS 4
// Columns that a lane has at a time.
#define PACKED_COLUMNS 16
// Lines of a band.
#define BAND_LINES (GROUP / 2)

// What a lane has of a band at a time: 16 bytes of each of its lines, and these columns' scales and minima.
template <int LINES>
struct Codes {
    Eight lines[LINES];
    Eight scales[2], minima[2];
};

template <int LINES>
__device__ inline void load_codes(const ProductArguments& arguments, unsigned int band, unsigned int first_line, unsigned int piece, Codes<LINES>& into) {
    unsigned long long k = arguments.k, at = (unsigned long long)piece * PACKED_COLUMNS;
    const unsigned char* first = (const unsigned char*)arguments.weights + band * k * GROUP_BYTES;
    bool there = at < k;
#pragma unroll
    for (int line = 0; line < LINES; line++) {
        into.lines[line] = load_weights(first + (4 + first_line + line) * k + at, there);
    }
#pragma unroll
    for (int eight = 0; eight < 2; eight++) {
        into.scales[eight] = load_common_weights(first + 2 * at + 16 * eight, there);
        into.minima[eight] = load_common_weights(first + 2 * k + 2 * at + 16 * eight, there);
    }
}

// How a code becomes a number. A multiprocessor begins fewer instructions than memory brings codes, so that each one counts: the low
// bits of an f32 are an integer in units of 2^-149, which `fmaf` takes as it is, exactly. Scales are larger by `RAISED` instead, and
// sums by `SUMMED` in the end. With four rows the assembler then loads so much ahead that registers run out, so there one instruction
// more stays: behind 2^23 the last bits of an f32 are an integer as well.
template <int ROWS>
struct Code {
    static constexpr bool AS_IT_LIES = ROWS < 4;
    static constexpr float RAISED = AS_IT_LIES ? 0x1p90f : 1.0f;
    static constexpr float SUMMED = AS_IT_LIES ? 0x1p59f : 1.0f;

    // The code under a mask in a word, times the value of the mask's lowest bit.
    __device__ static inline float at(unsigned int word, unsigned int mask) {
        if constexpr (AS_IT_LIES) {
            return __uint_as_float(word & mask);
        } else {
            return __fsub_rn(__uint_as_float(masked_or(word, mask, 0x4b000000u)), 8388608.0f);
        }
    }
};

// Sums of a block's two rows a line: of those that are odd 16 times, as their codes lie.
template <int LINES, int ROWS>
struct PackedSums {
    float rows[LINES][2][ROWS];
    float minima[ROWS];
};

// Adds what two columns of a word give: x times their scales, by rows of x. Codes of the second lie 8 bits higher than those of the
// first, which its scale is divided by.
template <int LINES, int ROWS>
__device__ inline void add_two(const Codes<LINES>& codes, int word, int pair, const float scaled[ROWS][2], PackedSums<LINES, ROWS>& sums) {
#pragma unroll
    for (int line = 0; line < LINES; line++) {
        unsigned int two = codes.lines[line].words[word] >> 16 * pair;
#pragma unroll
        for (int column = 0; column < 2; column++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float code = Code<ROWS>::at(two, 0xfu << (column * 8 + half * 4));
#pragma unroll
                for (int row = 0; row < ROWS; row++) {
                    sums.rows[line][half][row] = fmaf(code, scaled[row][column], sums.rows[line][half][row]);
                }
            }
        }
    }
}

// Two elements of a word, as f32.
template <class T>
__device__ inline void widen_two(unsigned int word, float* into) {
    into[0] = to_f32(T{(unsigned short)(word & 0xffffu)});
    into[1] = to_f32(T{(unsigned short)(word >> 16)});
}

// Adds what a lane has of all rows.
template <class T, int LINES, int ROWS>
__device__ inline void add_codes(const ProductArguments& arguments, const Codes<LINES>& codes, unsigned int piece, PackedSums<LINES, ROWS>& sums) {
    unsigned int first_row = blockIdx.x * ROWS, eights = arguments.k / 8;
#pragma unroll
    for (int eight = 0; eight < 2; eight++) {
        Eight x[ROWS];
#pragma unroll
        for (unsigned int row = 0; row < ROWS; row++) {
            const Eight* from = (const Eight*)arguments.x + (unsigned long long)(first_row + row) * eights;
            x[row] = load_if(from + piece * 2 + eight, first_row + row < arguments.m);
        }
#pragma unroll
        for (int two = 0; two < 4; two++) {
            float scales[2], minima[2], scaled[ROWS][2];
            widen_two<f16>(codes.scales[eight].words[two], scales);
            widen_two<f16>(codes.minima[eight].words[two], minima);
            scales[0] *= Code<ROWS>::RAISED;
            scales[1] *= Code<ROWS>::RAISED / 256.0f;
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                float both[2];
                widen_two<T>(x[row].words[two], both);
#pragma unroll
                for (int column = 0; column < 2; column++) {
                    scaled[row][column] = both[column] * scales[column];
                    sums.minima[row] = fmaf(both[column], minima[column], sums.minima[row]);
                }
            }
            add_two<LINES, ROWS>(codes, 2 * eight + two / 2, two % 2, scaled, sums);
        }
    }
}

// Adds up COUNT values of lanes that are up to OFFSET apart: lanes halve what they have as long as they have more than one. Gives
// which value a lane is left with.
template <int COUNT, int OFFSET>
__device__ inline unsigned int fold(float* values) {
    if constexpr (OFFSET == 0) {
        return 0;
    } else if constexpr (COUNT == 1) {
        values[0] += __shfl_xor_sync(ALL_LANES, values[0], OFFSET);
        return fold<1, OFFSET / 2>(values);
    } else {
        constexpr int HALF = COUNT / 2;
        bool upper = threadIdx.x & OFFSET;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            float given = upper ? values[i] : values[i + HALF];
            float kept = upper ? values[i + HALF] : values[i];
            values[i] = kept + __shfl_xor_sync(ALL_LANES, given, OFFSET);
        }
        return (upper ? HALF : 0) + fold<HALF, OFFSET / 2>(values);
    }
}

// Sums over a warp's lanes, each to its place.
template <int COUNT>
__device__ inline void put_warp_sums(float* values, float* into) {
    constexpr int AT_ONCE = COUNT < WARP ? COUNT : WARP;
#pragma unroll
    for (int first = 0; first < COUNT; first += AT_ONCE) {
        unsigned int place = fold<AT_ONCE, WARP / 2>(values + first);
        // Lanes that have the same put the same.
        into[first + place] = values[first];
    }
}

template <class T, int ROWS, int LINES>
__device__ void gemv_packed(const JoinedArguments& all) {
    constexpr int COUNT = LINES * 2 * ROWS, ALL = COUNT + ROWS;
    SHARED(float, parts, PACKED_WARPS * ALL);
    Own own = own_of(all, blockIdx.y);
    const ProductArguments& arguments = own.arguments;
    unsigned int band = own.block / (BAND_LINES / LINES), first_line = own.block % (BAND_LINES / LINES) * LINES;
    unsigned int pieces = arguments.k / PACKED_COLUMNS;
    Codes<LINES> codes;
    load_codes<LINES>(arguments, band, first_line, threadIdx.x, codes);
    wait_for_previous();
    PackedSums<LINES, ROWS> sums = {};
    for (unsigned int at = threadIdx.x; at < pieces; at += blockDim.x) {
        add_codes<T, LINES, ROWS>(arguments, codes, at, sums);
        load_codes<LINES>(arguments, band, first_line, at + blockDim.x, codes);
    }
    float* mine = parts + threadIdx.x / WARP * ALL;
    put_warp_sums<COUNT>(&sums.rows[0][0][0], mine);
    put_warp_sums<ROWS>(sums.minima, mine + COUNT);
    __syncthreads();
    unsigned int first_column = band * GROUP + 2 * first_line;
    for (unsigned int i = threadIdx.x; i < COUNT; i += blockDim.x) {
        unsigned int row = i % ROWS, column = first_column + i / ROWS;
        if (blockIdx.x * ROWS + row < arguments.m && column < arguments.n) {
            float codes_sum = 0.0f, minima_sum = 0.0f;
            for (unsigned int warp = 0; warp < blockDim.x / WARP; warp++) {
                codes_sum += parts[warp * ALL + i];
                minima_sum += parts[warp * ALL + COUNT + row];
            }
            codes_sum *= Code<ROWS>::SUMMED / (column % 2 ? 16.0f : 1.0f);
            put_product<T>(arguments, blockIdx.x * ROWS + row, column, codes_sum + minima_sum);
        }
    }
}

#define PACKED(TYPE, ROWS, LINES, BLOCKS)                                                                     \
    EARLY_KERNEL(gemv_packed_##TYPE##_m##ROWS, JoinedArguments, PACKED_WARPS* WARP, BLOCKS,               \
                     gemv_packed<TYPE, ROWS, LINES>)

// More rows leave registers for fewer lines.
#define PACKED_OF(TYPE)                                                                                       \
    PACKED(TYPE, 1, 8, 5)                                                                                    \
    PACKED(TYPE, 2, 8, 3)                                                                                    \
    PACKED(TYPE, 4, 4, 4)

PACKED_OF(f16)
PACKED_OF(bf16)
