// The flat product for few rows, y [m, n] = x [m, k] times weights [n, k], with weights that go from memory to tensor cores
// without a stop in shared memory; up to three such products of the same x.
//
// All time is that of reading the weights, so as many bytes as can be are under way from the first moment on: a block's warps
// share its columns of y and split k between them, and a lane asks for what it needs in some steps before it uses any. Sums of
// warps are added up at the end. In which order k goes does not matter as long as both operands have the same: a lane loads 16
// bytes of a row, neighbours along k, and they are what it has to give to two mmas. The weights are the 8-wide operand of
// those, since its registers lie as they are loaded; x is the 16-high one, half of it zero for up to 8 rows. `k` is a multiple
// of 8.
#include "product.cuh"

// Elements along k that a warp takes at once: 128 bytes of a row, in two halves.
#define STEP 64
#define HALF 32

// What a lane has of a step: 16 bytes of each of its rows, in either half.
template <int TILES, int EIGHTS>
struct Step {
    Eight weights[2][TILES];
    Eight x[2][EIGHTS];
};

// Loads a step of 8 * TILES rows of weights. What is not there is zero.
template <class T, int TILES, int EIGHTS>
__device__ inline void load_weights(const Own& own, unsigned int step, Step<TILES, EIGHTS>& into) {
    const ProductArguments& arguments = own.arguments;
    unsigned int lane = threadIdx.x % WARP, column = own.block * 8 * TILES + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        unsigned int at = step * STEP + half * HALF + lane % 4 * 8;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            // Columns behind the last are computed and not put, so any weights will do.
            unsigned long long source = least(column + tile * 8, arguments.n - 1);
            const T* place = (const T*)arguments.weights + source * arguments.k + at;
            into.weights[half][tile] = load_with_neighbours(place, at < arguments.k);
        }
    }
}

// The same of 8 * EIGHTS rows of x.
template <class T, int TILES, int EIGHTS>
__device__ inline void load_x(const ProductArguments& arguments, unsigned int step, Step<TILES, EIGHTS>& into) {
    unsigned int lane = threadIdx.x % WARP, row = blockIdx.y * 8 * EIGHTS + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        unsigned int at = step * STEP + half * HALF + lane % 4 * 8;
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) {
            const T* place = (const T*)arguments.x + (unsigned long long)(row + eight * 8) * arguments.k + at;
            into.x[half][eight] = load_if(place, at < arguments.k && row + eight * 8 < arguments.m);
        }
    }
}

// Adds a step's products on tensor cores. A lane's sums are those of rows lane / 4 and that + 8, and of two columns.
template <class T, int TILES, int EIGHTS>
struct OnTensorCores {
    static constexpr int SIXTEENS = (EIGHTS + 1) / 2;
    float sums[TILES][SIXTEENS][4];

    __device__ inline void add(const Step<TILES, EIGHTS>& step) {
#pragma unroll
        for (int part = 0; part < 4 * SIXTEENS; part++) {
            int half = part / SIXTEENS / 2, pair = part / SIXTEENS % 2 * 2, sixteen = part % SIXTEENS;
            const unsigned int* low = step.x[half][2 * sixteen].words + pair;
            const unsigned int* high = step.x[half][EIGHTS > 1 ? 2 * sixteen + 1 : 0].words + pair;
            unsigned int a[4] = {low[0], EIGHTS > 1 ? high[0] : 0, low[1], EIGHTS > 1 ? high[1] : 0};
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                Mma<T>::add(sums[tile][sixteen], a, step.weights[half][tile].words + pair);
            }
        }
    }

    // Each sum to its place in [8 * EIGHTS, stride].
    __device__ inline void put(float* parts, unsigned int stride) const {
        unsigned int lane = threadIdx.x % WARP, row = lane / 4, column = lane % 4 * 2;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int i = 0; i < 2 * EIGHTS; i++) {
                parts[(row + i / 2 * 8) * stride + tile * 8 + column + i % 2] = sums[tile][i / 4][i % 4];
            }
        }
    }
};

// The same on CUDA cores. A lane's sums are those of its row of weights with all of x, which it is shown by others.
template <class T, int TILES, int EIGHTS>
struct OnCudaCores {
    float sums[TILES][EIGHTS][8];

    __device__ inline void add(const Step<TILES, EIGHTS>& step) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < EIGHTS * 8; i++) {
                Eight shown;
                float v[8];
#pragma unroll
                for (int word = 0; word < 4; word++) {
                    shown.words[word] = __shfl_xor_sync(ALL_LANES, step.x[half][i / 8].words[word], i % 8 * 4);
                }
                widen<T>(shown, v);
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    float w[8];
                    widen<T>(step.weights[half][tile], w);
#pragma unroll
                    for (int at = 0; at < 8; at++) {
                        sums[tile][i / 8][i % 8] = fmaf(w[at], v[at], sums[tile][i / 8][i % 8]);
                    }
                }
            }
        }
    }

    __device__ inline void put(float* parts, unsigned int stride) const {
        unsigned int lane = threadIdx.x % WARP, column = lane / 4;
#pragma unroll
        for (int i = 0; i < TILES * EIGHTS * 8; i++) {
            int tile = i / (EIGHTS * 8), eight = i / 8 % EIGHTS, other = i % 8;
            // Four lanes have a row of weights, each a part of k.
            float sum = sums[tile][eight][other];
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            if (lane % 4 == 0) {
                parts[(eight * 8 + (column ^ other)) * stride + tile * 8 + column] = sum;
            }
        }
    }
};

template <bool TENSOR, class T, int TILES, int EIGHTS>
struct Adding {
    typedef OnTensorCores<T, TILES, EIGHTS> Way;
};

template <class T, int TILES, int EIGHTS>
struct Adding<false, T, TILES, EIGHTS> {
    typedef OnCudaCores<T, TILES, EIGHTS> Way;
};

// Adds up what the warps have of a block's columns, and puts it.
template <class T, int COLUMNS, int ROWS>
__device__ inline void put_sums(const Own& own, const float* parts, unsigned int stride) {
    const ProductArguments& arguments = own.arguments;
    for (unsigned int i = threadIdx.x; i < COLUMNS * ROWS; i += blockDim.x) {
        unsigned int row = blockIdx.y * ROWS + i / COLUMNS, column = own.block * COLUMNS + i % COLUMNS;
        if (row < arguments.m && column < arguments.n) {
            float sum = 0.0f;
#pragma unroll 4
            for (unsigned int warp = 0; warp < blockDim.x / WARP; warp++) {
                sum += parts[(warp * ROWS + i / COLUMNS) * stride + i % COLUMNS];
            }
            put_product<T>(arguments, row, column, sum);
        }
    }
}

// WARPS at most, and fewer where rows are short.
template <class T, int TILES, int EIGHTS, int WARPS, bool TENSOR>
__device__ void thin(const JoinedArguments& all) {
    // Eight more than a row is wide, so that lanes put their pairs into different banks.
    constexpr int COLUMNS = 8 * TILES, ROWS = 8 * EIGHTS, STRIDE = COLUMNS + 8;
    constexpr bool HAS = TENSOR && Mma<T>::HAS;
    // CUDA cores need registers for more than what is under way.
    constexpr int AHEAD = HAS ? 2 : 1;
    SHARED(float, parts, WARPS * ROWS * STRIDE);
    Own own = own_of(all, blockIdx.x);
    const ProductArguments& arguments = own.arguments;
    unsigned int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, count = (arguments.k + STEP - 1) / STEP;
    Step<TILES, EIGHTS> steps[AHEAD];
    typename Adding<HAS, T, TILES, EIGHTS>::Way sums = {};
#pragma unroll
    for (int ahead = 0; ahead < AHEAD; ahead++) {
        load_weights<T>(own, warp + ahead * warps, steps[ahead]);
    }
    // To have the rest brought nearer meanwhile, as GEMV does, gains nothing here.
    wait_for_previous();
#pragma unroll
    for (int ahead = 0; ahead < AHEAD; ahead++) {
        load_x<T>(arguments, warp + ahead * warps, steps[ahead]);
    }
    for (unsigned int step = warp; step < count; step += AHEAD * warps) {
#pragma unroll
        for (int ahead = 0; ahead < AHEAD; ahead++) {
            sums.add(steps[ahead]);
            unsigned int next = step + (AHEAD + ahead) * warps;
            load_weights<T>(own, next, steps[ahead]);
            load_x<T>(arguments, next, steps[ahead]);
        }
    }
    sums.put(parts + warp * ROWS * STRIDE, STRIDE);
    __syncthreads();
    put_sums<T, COLUMNS, ROWS>(own, parts, STRIDE);
}

// Blocks are small, so that whichever multiprocessor is quick gets more of them; but two eights of rows would read x too often,
// and so would one of deep weights.
#define THIN(NAME, TYPE, EIGHTS, TILES, WARPS) \
    EARLY_KERNEL(NAME, JoinedArguments, WARPS * WARP, 2, thin<TYPE, TILES, EIGHTS, WARPS, true>)

THIN(thin_f16_e1, f16, 1, 1, 16)
THIN(thin_f16_e1_wide, f16, 1, 2, 8)
THIN(thin_f16_e2, f16, 2, 2, 8)
THIN(thin_bf16_e1, bf16, 1, 1, 16)
THIN(thin_bf16_e1_wide, bf16, 1, 2, 8)
THIN(thin_bf16_e2, bf16, 2, 2, 8)

// What stands in where tensor cores lack the type, by its own name so that it is tested everywhere.
EARLY_KERNEL(thin_plain_bf16_e2, JoinedArguments, 8 * WARP, 1, thin<bf16, 2, 2, 8, false>)
