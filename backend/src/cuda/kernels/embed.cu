// Rows of the token table, and of the table of learned positions where the model has one. A block a token.
#include "elements.cuh"

struct EmbedArguments {
    const unsigned int* tokens;    // [blocks]
    const unsigned int* positions; // [blocks], in each token's own text
    const void* table;             // [rows, width]
    const void* learned;           // [places, width], or null
    void* y;                       // [blocks, width]
    unsigned int* outside;         // set to 1 where a token or a position lies outside of its table
    unsigned int width, rows, places, offset;
};

template <class T>
__device__ void embed(const EmbedArguments& arguments) {
    unsigned int token = arguments.tokens[blockIdx.x];
    unsigned int place = arguments.positions[blockIdx.x] + arguments.offset;
    if (token >= arguments.rows || (arguments.learned && place >= arguments.places)) {
        if (threadIdx.x == 0) {
            *arguments.outside = 1;
        }
        return;
    }
    const T* row = (const T*)arguments.table + (unsigned long long)token * arguments.width;
    const T* learned = (const T*)arguments.learned + (unsigned long long)place * arguments.width;
    T* y = (T*)arguments.y + (unsigned long long)blockIdx.x * arguments.width;
    for (unsigned int i = threadIdx.x; i < arguments.width; i += blockDim.x) {
        y[i] = arguments.learned ? narrowed<T>(to_f32(row[i]) + to_f32(learned[i])) : row[i];
    }
}

KERNEL_OF_TYPES(embed, EmbedArguments, 256)
