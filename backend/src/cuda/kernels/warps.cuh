// Attention's loop over positions on tensor cores, for heads of DIM elements that are kept whole: a warp takes sixteen at a time, for
// up to eight heads, without a shuffle between lanes.
//
// Scores are queries (a head a row, of which half stand empty) times keys: a lane has whole sixteen bytes of a key, so products go
// over a head's elements in an order of their own, which is the queries' as well. A lane then has the scores of one head at two
// neighbouring positions, which is how the weights are wanted for the result's columns: values, transposed, times weights. Weights
// are TF32, which has the range of f32, so that e^(score - phi) fits whatever the range; what rounding took off is added by a second
// product, so that sums are as good as those of CUDA cores. Values are TF32 as they stand.
#pragma once
#include "split.cuh"

// One of the two elements of a word, as the bits of an f32.
template <class T>
__device__ inline unsigned int widened_bits(unsigned int word, int half) {
    return __float_as_uint(to_f32(T{(unsigned short)(word >> 16 * half)}));
}

template <class T, int DIM>
struct Warps {
    static constexpr int HEADS = 8;
    static constexpr int VALUES = HEADS * ATTENTION_WARPS * DIM;
    // Positions at a time, of which eight are scored together.
    static constexpr int POSITIONS = 16;
    static constexpr int EIGHTS = POSITIONS / 8;
    // Sixteen bytes that a lane has of a key, and of a value; tiles of sixteen elements of a result.
    static constexpr int OF_KEY = DIM / 32;
    static constexpr int OF_VALUE = DIM / 64;
    static constexpr int TILES = DIM / 16;

    unsigned int queries[OF_KEY][4];
    // Of head 2 * place + i % 2.
    float values[TILES][4];
    // Of head `line`.
    float denominator, maximum;
    // Which of eight lines, and which place of four in it, is the lane's.
    unsigned int line, place;
    unsigned int key, value;
    // Where the lane found its last records.
    Run run;

    template <class A>
    __device__ void ask(const A& arguments, const Heads& own) {
        line = threadIdx.x % WARP / 4;
        place = threadIdx.x % 4;
        const T* from = (const T*)arguments.queries + of_batch(arguments, own.query + line) * DIM;
#pragma unroll
        for (int i = 0; i < OF_KEY; i++) {
            Eight some = {{0, 0, 0, 0}};
            if (line < own.count) {
                some = *(const Eight*)(from + (i * 4 + place) * 8);
            }
#pragma unroll
            for (int word = 0; word < 4; word++) {
                queries[i][word] = some.words[word];
            }
        }
        key = row_of_record(arguments) * DIM * sizeof(T);
        value = key + rows_of_record(arguments) * DIM * sizeof(T);
    }

    // Those past the end stand in as the last one, with no weight.
    template <class A>
    __device__ void load_keys(const A& arguments, unsigned int base, unsigned int end, Eight (*keys)[OF_KEY]) {
        unsigned int positions[EIGHTS];
        const unsigned char* records[EIGHTS];
#pragma unroll
        for (int n = 0; n < EIGHTS; n++) {
            positions[n] = least(base + n * 8 + line, end - 1);
        }
        find_records<EIGHTS>(arguments, run, positions, records);
#pragma unroll
        for (int n = 0; n < EIGHTS; n++) {
#pragma unroll
            for (int i = 0; i < OF_KEY; i++) {
                keys[n][i] = load_once(records[n] + key + place * 16 + i * 64, true);
            }
        }
    }

    template <class A>
    __device__ void load_values(const A& arguments, unsigned int base, unsigned int end, Eight (*kept)[OF_VALUE]) {
        unsigned int positions[2 * EIGHTS];
        const unsigned char* records[2 * EIGHTS];
#pragma unroll
        for (int n = 0; n < 2 * EIGHTS; n++) {
            positions[n] = least(position(base, n), end - 1);
        }
        find_records<2 * EIGHTS>(arguments, run, positions, records);
#pragma unroll
        for (int n = 0; n < 2 * EIGHTS; n++) {
#pragma unroll
            for (int i = 0; i < OF_VALUE; i++) {
                kept[n][i] = load_once(records[n] + value + line * 16 + i * 128, true);
            }
        }
    }

    // The lane's n-th position, of its scores as of its values.
    __device__ unsigned int position(unsigned int base, int n) const {
        return base + n / 2 * 8 + place * 2 + n % 2;
    }

    __device__ void score(const Eight (*keys)[OF_KEY], float scale, float* scores) const {
#pragma unroll
        for (int n = 0; n < EIGHTS; n++) {
            float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < OF_KEY; i++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    unsigned int rows[4] = {queries[i][2 * half], 0, queries[i][2 * half + 1], 0};
                    Mma<T>::add(sums, rows, keys[n][i].words + 2 * half);
                }
            }
            scores[2 * n] = sums[0] * scale;
            scores[2 * n + 1] = sums[1] * scale;
        }
    }

    // Weights in place of scores, of those that share phi. Says whether any left the range.
    __device__ bool share(const Unified& unified, unsigned int base, unsigned int end, float* scores) {
        bool left = false;
#pragma unroll
        for (int n = 0; n < 2 * EIGHTS; n++) {
            bool there = position(base, n) < end;
            float off = scores[n] - unified.phi;
            // A NaN leaves the range as well.
            left |= there && !(off > unified.low && off < unified.high);
            scores[n] = there ? exponential(off) : 0.0f;
            denominator += scores[n];
        }
        return left;
    }

    // The same with a running maximum, by which all that was found before is scaled anew.
    __device__ void synchronise(unsigned int base, unsigned int end, float* scores) {
        float largest = maximum;
#pragma unroll
        for (int n = 0; n < 2 * EIGHTS; n++) {
            largest = position(base, n) < end ? larger(largest, scores[n]) : largest;
        }
        largest = larger(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = larger(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        float shrink = shrinks_by(maximum, largest);
        maximum = largest;
        denominator *= shrink;
        float by[2];
        // Of the heads that this lane has columns of.
#pragma unroll
        for (int i = 0; i < 2; i++) {
            by[i] = __shfl_sync(ALL_LANES, shrink, (2 * place + i) * 4);
        }
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) {
            values[i / 4][i % 4] *= by[i % 2];
        }
#pragma unroll
        for (int n = 0; n < 2 * EIGHTS; n++) {
            scores[n] = position(base, n) < end ? exponential(scores[n] - largest) : 0.0f;
            denominator += scores[n];
        }
    }

    // Adds values, weighted. Rows of a tile are an element each of the first and of the second half of what a lane has of a value.
    __device__ void add(const float* weights, const Eight (*kept)[OF_VALUE]) {
#pragma unroll
        for (int n = 0; n < EIGHTS; n++) {
            unsigned int columns[2], rest[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                columns[i] = to_tf32(weights[2 * n + i]);
                rest[i] = to_tf32(weights[2 * n + i] - __uint_as_float(columns[i]));
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                unsigned int rows[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    // Registers 1 and 3 are eight rows further down, 2 and 3 the next position.
                    int word = tile / 2 + i % 2 * TILES / 2;
                    rows[i] = widened_bits<T>(kept[2 * n + i / 2][word / 4].words[word % 4], tile % 2);
                }
                add_tf32(values[tile], rows, columns);
                add_tf32(values[tile], rows, rest);
            }
        }
    }

    // Whether this thread flagged a query.
    template <bool SHARE, class A>
    __device__ bool walk(const A& arguments, const Unified& unified, const Seen& seen, const Heads& own) {
        run = Run{nullptr, 0, 0};
        denominator = 0.0f;
        maximum = -__uint_as_float(0x7f800000u);
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) {
            values[i / 4][i % 4] = 0.0f;
        }
        bool left = false;
        unsigned int base = seen.begin + threadIdx.x / WARP * POSITIONS, next;
        Eight keys[EIGHTS][OF_KEY], kept[2 * EIGHTS][OF_VALUE];
        if (base < seen.end) {
            load_keys(arguments, base, seen.end, keys);
            load_values(arguments, base, seen.end, kept);
        }
        // What is loaded is used up by halves, and the next takes its place at once: so some is always under way.
        for (; base < seen.end; base = next) {
            next = base + ATTENTION_WARPS * POSITIONS;
            float scores[2 * EIGHTS];
            score(keys, arguments.scale, scores);
            if (next < seen.end) {
                load_keys(arguments, next, seen.end, keys);
            }
            if (SHARE) {
                left |= share(unified, base, seen.end, scores);
            } else {
                synchronise(base, seen.end, scores);
            }
            add(scores, kept);
            if (next < seen.end) {
                load_values(arguments, next, seen.end, kept);
            }
        }
        if (SHARE && left && line < own.count) {
            arguments.overflow[own.query + line] = 1;
        }
        denominator += __shfl_xor_sync(ALL_LANES, denominator, 1);
        denominator += __shfl_xor_sync(ALL_LANES, denominator, 2);
        return SHARE && left;
    }

    __device__ void put(const Found& found, const Heads& own, unsigned int) const {
        unsigned int warp = threadIdx.x / WARP;
        if (place == 0 && line < own.count) {
            found.denominators[line * ATTENTION_WARPS + warp] = denominator;
            found.maxima[line * ATTENTION_WARPS + warp] = maximum;
        }
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) {
            unsigned int head = 2 * place + i % 2, half = i / 2 % 2;
            // Sixteen bytes of a line begin 64 elements after those before; halves of sixteen bytes are four elements apart.
            unsigned int element = OF_VALUE == 2 ? half * 64 + line * 8 + i / 4 : line * 8 + half * 4 + i / 4;
            if (head < own.count) {
                found.values[(head * ATTENTION_WARPS + warp) * DIM + element] = values[i / 4][i % 4];
            }
        }
    }
};
