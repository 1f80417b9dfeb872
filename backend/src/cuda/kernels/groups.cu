// Weight matrices [rows, columns] to bands of 64 rows of 4-bit groups, and back. A band holds the scales of its columns, their
// minima, then 32 lines of a byte a column, of rows 2 i (low) and 2 i + 1 (high). A thread packs a column of a band, or unpacks four of
// some lines.
#include "groups.cuh"

struct MatrixGroupsArguments {
    void* elements;        // [rows, columns]
    unsigned char* packed; // [bands] of columns * 36 bytes
    unsigned int rows, columns;
};

// Columns of a band that a thread unpacks, and lines.
#define UNPACK_COLUMNS 4
#define UNPACK_LINES 8

struct Band {
    unsigned short* scales;
    unsigned short* minima;
    unsigned char* codes;
    unsigned int first_row, rows;
};

__device__ inline Band band_of(const MatrixGroupsArguments& arguments) {
    Band band;
    unsigned long long columns = arguments.columns;
    unsigned char* start = arguments.packed + blockIdx.y * columns * GROUP_BYTES;
    band.scales = (unsigned short*)start;
    band.minima = band.scales + columns;
    band.codes = start + 4 * columns;
    band.first_row = blockIdx.y * GROUP;
    band.rows = least(GROUP, arguments.rows - band.first_row);
    return band;
}

// Four neighbours' elements, where rows are whole fours.
struct alignas(8) TwoWords {
    unsigned int words[2];
};

// A thread's columns of a band, of which there are `count`.
template <class T>
struct Columns {
    const unsigned char* codes;
    T* elements;
    unsigned int count;
    float scales[UNPACK_COLUMNS], minima[UNPACK_COLUMNS];

    __device__ inline float at(unsigned int codes_of_four, unsigned int column, unsigned int half) const {
        return fmaf((float)(codes_of_four >> (8 * column + 4 * half) & 15u), scales[column], minima[column]);
    }
};

// Unpacks the two rows of a line, in words.
template <class T>
__device__ inline void unpack_words(const Columns<T>& of, unsigned int line, unsigned long long columns, unsigned int rows) {
    // Lines behind the last row are there, and not put.
    unsigned int codes = *(const unsigned int*)(of.codes + line * columns);
#pragma unroll
    for (unsigned int half = 0; half < 2; half++) {
        TwoWords both;
#pragma unroll
        for (unsigned int i = 0; i < 2; i++) {
            unsigned int low = narrowed<T>(of.at(codes, 2 * i, half)).bits;
            both.words[i] = low | (unsigned int)narrowed<T>(of.at(codes, 2 * i + 1, half)).bits << 16;
        }
        if (2 * line + half < rows) {
            *(TwoWords*)(of.elements + (2 * line + half) * columns) = both;
        }
    }
}

// The same one by one.
template <class T>
__device__ inline void unpack_single(const Columns<T>& of, unsigned int line, unsigned long long columns, unsigned int rows) {
#pragma unroll
    for (unsigned int i = 0; i < UNPACK_COLUMNS; i++) {
        unsigned int codes = i < of.count ? (unsigned int)of.codes[line * columns + i] << 8 * i : 0;
        for (unsigned int half = 0; half < 2; half++) {
            if (i < of.count && 2 * line + half < rows) {
                of.elements[(2 * line + half) * columns + i] = narrowed<T>(of.at(codes, i, half));
            }
        }
    }
}

template <class T>
__device__ void unpack_matrix(const MatrixGroupsArguments& arguments) {
    Band band = band_of(arguments);
    unsigned int columns = arguments.columns, column = (blockIdx.x * blockDim.x + threadIdx.x) * UNPACK_COLUMNS;
    if (column >= columns) {
        return;
    }
    Columns<T> own;
    own.codes = band.codes + column;
    own.elements = (T*)arguments.elements + (unsigned long long)band.first_row * columns + column;
    own.count = least(UNPACK_COLUMNS, columns - column);
#pragma unroll
    for (unsigned int i = 0; i < UNPACK_COLUMNS; i++) {
        unsigned int at = least(column + i, columns - 1);
        own.scales[i] = to_f32(f16{band.scales[at]});
        own.minima[i] = to_f32(f16{band.minima[at]});
    }
    unsigned int first = blockIdx.z * UNPACK_LINES;
    if (columns % UNPACK_COLUMNS == 0) {
#pragma unroll
        for (unsigned int line = 0; line < UNPACK_LINES; line++) {
            unpack_words(own, first + line, columns, band.rows);
        }
        return;
    }
#pragma unroll 1
    for (unsigned int line = 0; line < UNPACK_LINES; line++) {
        unpack_single(own, first + line, columns, band.rows);
    }
}

template <class T>
__device__ void pack_matrix(const MatrixGroupsArguments& arguments) {
    Band band = band_of(arguments);
    unsigned int columns = arguments.columns, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) {
        return;
    }
    const T* x = (const T*)arguments.elements + (unsigned long long)band.first_row * columns + column;
    float infinity = __uint_as_float(0x7f800000u), minimum = infinity, maximum = -infinity, taint = 0.0f;
    for (unsigned int row = 0; row < band.rows; row++) {
        float value = to_f32(x[(unsigned long long)row * columns]);
        minimum = value < minimum ? value : minimum;
        maximum = larger(maximum, value);
        taint = __fadd_rn(taint, __fmul_rn(value, 0.0f));
    }
    Quantiser quantiser = quantiser_of(minimum, maximum, taint);
    band.scales[column] = kept(quantiser.scale);
    band.minima[column] = kept(quantiser.minimum);
    for (unsigned int line = 0; line < GROUP / 2; line++) {
        unsigned int both = 0;
        // Rows that a last band lacks have code 0.
        for (unsigned int half = 0; half < 2 && 2 * line + half < band.rows; half++) {
            float value = to_f32(x[(unsigned long long)(2 * line + half) * columns]);
            both |= code_of(quantiser, value) << 4 * half;
        }
        band.codes[(unsigned long long)line * columns + column] = (unsigned char)both;
    }
}

KERNEL_OF_TYPES(unpack_matrix, MatrixGroupsArguments, 256)
KERNEL_OF_TYPES(pack_matrix, MatrixGroupsArguments, 256)
