// Rows of the token table, and of the table of learned positions where the model has one, whole or in 4-bit groups. A block a
// token.
#include "groups.cuh"

struct EmbedArguments {
    const unsigned int* tokens;    // [blocks]
    const unsigned int* positions; // [blocks], in each token's own text
    const void* table;             // [rows, width]
    const void* learned;           // [places, width], or null
    void* y;                       // [blocks, width]
    unsigned int width, rows, places, offset;
};

// An element of a matrix that is kept whole.
template <class T>
struct WholeTable {
    __device__ static float at(const void* table, unsigned int width, unsigned long long row, unsigned int column) {
        return to_f32(((const T*)table)[row * width + column]);
    }
};

// Of one in bands of 64 rows of groups (groups.cu).
struct PackedTable {
    __device__ static float at(const void* table, unsigned int width, unsigned long long row, unsigned int column) {
        const unsigned char* band = (const unsigned char*)table + row / GROUP * width * GROUP_BYTES;
        const unsigned short* ends = (const unsigned short*)band;
        unsigned int within = row % GROUP;
        unsigned int both = band[4ull * width + (unsigned long long)(within / 2) * width + column];
        float code = (float)(both >> within % 2 * 4 & 15u);
        return fmaf(code, to_f32(f16{ends[column]}), to_f32(f16{ends[width + column]}));
    }
};

template <class T, class TABLE>
__device__ void embed(const EmbedArguments& arguments) {
    unsigned int token = arguments.tokens[blockIdx.x];
    unsigned int place = arguments.positions[blockIdx.x] + arguments.offset;
    // What is in no table becomes no number, which whoever looks at the text's logits is told.
    bool outside = token >= arguments.rows || (arguments.learned && place >= arguments.places);
    T* y = (T*)arguments.y + (unsigned long long)blockIdx.x * arguments.width;
    for (unsigned int i = threadIdx.x; i < arguments.width; i += blockDim.x) {
        float sum = __uint_as_float(0x7fc00000u);
        if (!outside) {
            sum = TABLE::at(arguments.table, arguments.width, token, i);
        }
        if (!outside && arguments.learned) {
            sum += TABLE::at(arguments.learned, arguments.width, place, i);
        }
        y[i] = narrowed<T>(sum);
    }
}

KERNEL(embed_f16, EmbedArguments, 256, embed<f16, WholeTable<f16>>)
KERNEL(embed_bf16, EmbedArguments, 256, embed<bf16, WholeTable<bf16>>)
KERNEL(embed_packed_f16, EmbedArguments, 256, embed<f16, PackedTable>)
KERNEL(embed_packed_bf16, EmbedArguments, 256, embed<bf16, PackedTable>)
