// Weight matrices [rows, columns] to bands of 64 rows of 4-bit groups, and back. A band holds the scales of its columns, their
// minima, then 32 lines of a byte a column, of rows 2 i (low) and 2 i + 1 (high). A thread a column of a band.
#include "groups.cuh"

struct MatrixGroupsArguments {
    void* elements;        // [rows, columns]
    unsigned char* packed; // [bands] of columns * 36 bytes
    unsigned int rows, columns;
};

struct Band {
    unsigned short* scales;
    unsigned short* minima;
    unsigned char* codes;
    unsigned int column, first_row, rows;
};

__device__ inline Band band_of(const MatrixGroupsArguments& arguments) {
    Band band;
    unsigned long long columns = arguments.columns;
    unsigned char* start = arguments.packed + blockIdx.y * columns * GROUP_BYTES;
    band.scales = (unsigned short*)start;
    band.minima = band.scales + columns;
    band.codes = start + 4 * columns;
    band.column = blockIdx.x * blockDim.x + threadIdx.x;
    band.first_row = blockIdx.y * GROUP;
    band.rows = least(GROUP, arguments.rows - band.first_row);
    return band;
}

template <class T>
__device__ void unpack_matrix(const MatrixGroupsArguments& arguments) {
    Band band = band_of(arguments);
    unsigned int columns = arguments.columns;
    if (band.column >= columns) {
        return;
    }
    float scale = to_f32(f16{band.scales[band.column]}), minimum = to_f32(f16{band.minima[band.column]});
    T* y = (T*)arguments.elements + (unsigned long long)band.first_row * columns + band.column;
    for (unsigned int row = 0; row < band.rows; row++) {
        unsigned int both = band.codes[(unsigned long long)(row / 2) * columns + band.column];
        float code = (float)(both >> row % 2 * 4 & 15u);
        y[(unsigned long long)row * columns] = narrowed<T>(fmaf(code, scale, minimum));
    }
}

template <class T>
__device__ void pack_matrix(const MatrixGroupsArguments& arguments) {
    Band band = band_of(arguments);
    unsigned int columns = arguments.columns;
    if (band.column >= columns) {
        return;
    }
    const T* x = (const T*)arguments.elements + (unsigned long long)band.first_row * columns + band.column;
    float infinity = __uint_as_float(0x7f800000u), minimum = infinity, maximum = -infinity, taint = 0.0f;
    for (unsigned int row = 0; row < band.rows; row++) {
        float value = to_f32(x[(unsigned long long)row * columns]);
        minimum = value < minimum ? value : minimum;
        maximum = larger(maximum, value);
        taint = __fadd_rn(taint, __fmul_rn(value, 0.0f));
    }
    Quantiser quantiser = quantiser_of(minimum, maximum, taint);
    band.scales[band.column] = kept(quantiser.scale);
    band.minima[band.column] = kept(quantiser.minimum);
    for (unsigned int line = 0; line < GROUP / 2; line++) {
        unsigned int both = 0;
        // Rows that a last band lacks have code 0.
        for (unsigned int half = 0; half < 2 && 2 * line + half < band.rows; half++) {
            float value = to_f32(x[(unsigned long long)(2 * line + half) * columns]);
            both |= code_of(quantiser, value) << 4 * half;
        }
        band.codes[(unsigned long long)line * columns + band.column] = (unsigned char)both;
    }
}

KERNEL_OF_TYPES(unpack_matrix, MatrixGroupsArguments, 256)
KERNEL_OF_TYPES(pack_matrix, MatrixGroupsArguments, 256)
