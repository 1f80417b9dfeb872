// y [m, n] = x [m, k] times weights [n, k], for few rows of x, by whole rows of weights (FlashDecoding++ section 5,
// implementation A); up to three such products of the same x.
//
// All time goes by reading the weights, which go by as they lie: the warps of a block share a few rows of them, 512 neighbouring
// bytes a warp at a time, and each lane asks for some pieces before it uses the first. A lane multiplies its 16 bytes with those
// at the same place in up to ROWS rows of x. For one row CUDA cores do that. For more tensor cores do, though only the diagonal
// of what they compute is of use: eights of lanes are the columns of one operand, the same eights of x the rows of the other,
// and where both are of the same place is a part of the sum. They have the time, and fragments lie as they are loaded.
#include "product.cuh"
#include "reduce.cuh"

// At most; fewer where rows are short.
#define GEMV_WARPS 4
#define GEMV_THREADS (GEMV_WARPS * WARP)

// Sums on CUDA cores: each lane has a part of all.
template <class T, int ROWS, int COLUMNS>
struct OnCores {
    // How many lanes of a warp put parts of a sum.
    static constexpr int LANES = 1;
    float sums[COLUMNS][ROWS];

    // Adds COUNT rows from the `first` on.
    template <int COUNT>
    __device__ inline void add(const Eight* weights, const Eight* x, int first) {
#pragma unroll
        for (int i = 0; i < COLUMNS * COUNT; i++) {
            int column = i / COUNT, row = first + i % COUNT;
            float w[8], v[8];
            widen<T>(weights[column], w);
            widen<T>(x[i % COUNT], v);
#pragma unroll
            for (int at = 0; at < 8; at++) {
                sums[column][row] = fmaf(w[at], v[at], sums[column][row]);
            }
        }
    }

    __device__ inline void put(float* parts) const {
#pragma unroll
        for (int i = 0; i < COLUMNS * ROWS; i++) {
            float sum = warp_sum(sums[i / ROWS][i % ROWS]);
            if (threadIdx.x % WARP == 0) {
                parts[i] = sum;
            }
        }
    }
};

// Sums on the diagonals of tensor cores, two rows of x a product: lanes 4 g + t have columns 2 t and 2 t + 1 of row g.
template <class T, int ROWS, int COLUMNS>
struct OnDiagonal {
    static constexpr int LANES = 8;
    float sums[COLUMNS][ROWS / 2][4];

    template <int COUNT>
    __device__ inline void add(const Eight* weights, const Eight* x, int first) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int two = i / 2 * 2, pair = i % 2 * 2;
            const unsigned int *low = x[two].words + pair, *high = x[two + 1].words + pair;
            unsigned int a[4] = {low[0], high[0], low[1], high[1]};
#pragma unroll
            for (int column = 0; column < COLUMNS; column++) {
                Mma<T>::add(sums[column][(first + two) / 2], a, weights[column].words + pair);
            }
        }
    }

    __device__ inline void put(float* parts) const {
        unsigned int lane = threadIdx.x % WARP, eighth = lane / 4;
        if (eighth / 2 != lane % 4) {
            return;
        }
#pragma unroll
        for (int i = 0; i < COLUMNS * ROWS; i++) {
            const float* of_row = sums[i / ROWS][i % ROWS / 2] + i % 2 * 2;
            parts[eighth * COLUMNS * ROWS + i] = eighth % 2 ? of_row[1] : of_row[0];
        }
    }
};

template <bool TENSOR, class T, int ROWS, int COLUMNS>
struct Summing {
    typedef OnDiagonal<T, ROWS, COLUMNS> Way;
};

template <class T, int ROWS, int COLUMNS>
struct Summing<false, T, ROWS, COLUMNS> {
    typedef OnCores<T, ROWS, COLUMNS> Way;
};

// A block's operands: its first row of each, and how many there are.
template <class T>
struct Rows {
    const T* weights;
    const T* x;
    unsigned int columns, rows;
    unsigned int k;
};

// Rows begin on 16 bytes only where their length is a multiple of that. All others are multiplied here, element by element.
template <class T, int ROWS, int COLUMNS>
__device__ inline void add_unaligned(const Rows<T>& from, float* parts) {
    for (unsigned int i = 0; i < COLUMNS * ROWS; i++) {
        unsigned int column = i / ROWS, row = i % ROWS;
        float sum = 0.0f;
        if (column < from.columns && row < from.rows) {
            const T* weights = from.weights + (unsigned long long)column * from.k;
            const T* x = from.x + (unsigned long long)row * from.k;
            for (unsigned int at = threadIdx.x; at < from.k; at += blockDim.x) {
                sum = fmaf(to_f32(weights[at]), to_f32(x[at]), sum);
            }
        }
        sum = warp_sum(sum);
        if (threadIdx.x % WARP == 0) {
            parts[i] += sum;
        }
    }
}

// Bytes of a row of weights that are brought nearer at most: of all blocks that wait at once, as much as memory gives meanwhile.
#define NEARER 8192

// While blocks wait for what came before, memory would have nothing to do once their first weights are there: it brings nearer what
// they read next, the rest of a row of which they hold so many elements, or a later block's row.
template <class T>
__device__ inline void bring_row_nearer(const ProductArguments& arguments, unsigned int row, unsigned int held, unsigned int later) {
    bool more = held < arguments.k;
    row = more ? row : later;
    if (arguments.k % 8 == 0 && row < arguments.n) {
        unsigned int first = more ? held : 0, bytes = least((arguments.k - first) * sizeof(T), NEARER);
        bring_nearer((const T*)arguments.weights + (unsigned long long)row * arguments.k + first, bytes);
    }
}

// Loads sixteen bytes of each row of weights.
template <class T, int COLUMNS>
__device__ inline void load_columns(const Rows<T>& from, unsigned int at, unsigned int sixteens, Eight* into) {
#pragma unroll
    for (unsigned int column = 0; column < COLUMNS; column++) {
        // Columns behind the last are computed and not put.
        unsigned int row = least(column, from.columns - 1) * sixteens;
        into[column] = load_weights((const Eight*)from.weights + row + at, at < sixteens);
    }
}

// Adds what a warp has of all rows, of some block of its product. A wave is as many blocks as there are at once.
template <class T, int ROWS, int COLUMNS, int AHEAD, class Way>
__device__ inline void add_rows(const Own& own, const Rows<T>& from, unsigned int wave, Way& sums) {
    // More would leave too few registers for what is under way.
    constexpr unsigned int AT_ONCE = ROWS < 4 ? ROWS : 4;
    unsigned int sixteens = from.k % 8 ? 0 : from.k / 8;
    Eight weights[AHEAD][COLUMNS];
#pragma unroll
    for (unsigned int ahead = 0; ahead < AHEAD; ahead++) {
        load_columns<T, COLUMNS>(from, ahead * blockDim.x + threadIdx.x, sixteens, weights[ahead]);
    }
    if (threadIdx.x < COLUMNS && blockIdx.x < wave) {
        unsigned int row = own.block * COLUMNS + threadIdx.x;
        bring_row_nearer<T>(own.arguments, row, AHEAD * blockDim.x * 8, row + wave * COLUMNS);
    }
    wait_for_previous();
    // All lanes of a warp go on as long as any has something, since they compute together.
    for (unsigned int base = threadIdx.x / WARP * WARP; base < sixteens; base += AHEAD * blockDim.x) {
#pragma unroll
        for (unsigned int ahead = 0; ahead < AHEAD; ahead++) {
            unsigned int at = base + ahead * blockDim.x + threadIdx.x % WARP;
#pragma unroll
            for (unsigned int first = 0; first < ROWS; first += AT_ONCE) {
                Eight x[AT_ONCE];
#pragma unroll
                for (unsigned int i = 0; i < AT_ONCE; i++) {
                    unsigned int row = first + i;
                    x[i] = load_if((const Eight*)from.x + row * sixteens + at, at < sixteens && row < from.rows);
                }
                sums.template add<AT_ONCE>(weights[ahead], x, first);
            }
            load_columns<T, COLUMNS>(from, at + AHEAD * blockDim.x, sixteens, weights[ahead]);
        }
    }
}

template <class T, int ROWS, int COLUMNS, int AHEAD, int BLOCKS, bool TENSOR>
__device__ void gemv(const JoinedArguments& all) {
    typedef typename Summing<TENSOR && Mma<T>::HAS, T, ROWS, COLUMNS>::Way Way;
    constexpr unsigned int COUNT = COLUMNS * ROWS;
    SHARED(float, parts, GEMV_WARPS * Way::LANES * COUNT);
    Own own = own_of(all, blockIdx.x);
    const ProductArguments& arguments = own.arguments;
    unsigned int column = own.block * COLUMNS, row = blockIdx.y * ROWS;
    Rows<T> from = {
        (const T*)arguments.weights + (unsigned long long)column * arguments.k,
        (const T*)arguments.x + (unsigned long long)row * arguments.k,
        least(COLUMNS, arguments.n - column),
        least(ROWS, arguments.m - row),
        arguments.k,
    };
    Way sums = {};
    add_rows<T, ROWS, COLUMNS, AHEAD>(own, from, multiprocessors() * BLOCKS, sums);
    float* mine = parts + threadIdx.x / WARP * Way::LANES * COUNT;
    sums.put(mine);
    if (from.k % 8) {
        add_unaligned<T, ROWS, COLUMNS>(from, mine);
    }
    __syncthreads();
    for (unsigned int i = threadIdx.x; i < COUNT; i += blockDim.x) {
        if (i / ROWS < from.columns && i % ROWS < from.rows) {
            float sum = 0.0f;
#pragma unroll 4
            for (unsigned int part = 0; part < blockDim.x / WARP * Way::LANES; part++) {
                sum += parts[part * COUNT + i];
            }
            put_product<T>(arguments, row + i % ROWS, column + i / ROWS, sum);
        }
    }
}

#define GEMV(TYPE, ROWS, COLUMNS, AHEAD, BLOCKS)                                                              \
    EARLY_KERNEL(gemv_##TYPE##_m##ROWS, JoinedArguments, GEMV_THREADS, BLOCKS,                             \
                     gemv<TYPE, ROWS, COLUMNS, AHEAD, BLOCKS, (ROWS > 1)>)

// More rows read x more often than weights, unless some columns share a reading of it.
#define GEMV_OF(TYPE)                                                                                         \
    GEMV(TYPE, 1, 1, 4, 8)                                                                                   \
    GEMV(TYPE, 2, 1, 4, 8)                                                                                   \
    GEMV(TYPE, 4, 2, 2, 5)                                                                                   \
    GEMV(TYPE, 8, 3, 2, 3)

GEMV_OF(f16)
GEMV_OF(bf16)

// What stands in where tensor cores lack the type, by its own name so that it is tested everywhere.
EARLY_KERNEL(gemv_plain_bf16_m4, JoinedArguments, GEMV_THREADS, 1, gemv<bf16, 4, 2, 4, 1, false>)
