// Attention of a prompt's queries on tensor cores (Dao 2023, FlashAttention-2), for heads of at most 128 elements.
//
// A block has TILES_QUERIES neighbouring queries of one head, a warp 16 of them, which stay in registers with their sums. The
// positions that any of them sees come TILES_KEYS at a time; while a tile is computed the next one is copied to the other
// buffer. Scores are a product of fragments, their softmax is kept up in registers as tiles come, and the weights, rounded to
// the stored type, are the left operand of the product with the values just as they lie. Results take the place of the queries,
// which no other block reads.
//
// Which element of a head is which column of a fragment is free, as long as both operands agree and results are written
// accordingly. So a lane has eight neighbours of a head wherever PTX spreads pairs or columns, and all loads and stores are of
// sixteen bytes.
#include "prompt.cuh"

#define TILES_WARPS 4
#define TILES_THREADS (TILES_WARPS * WARP)
#define TILES_QUERIES (TILES_WARPS * 16)
#define TILES_KEYS 32

// Rows of shared memory, in elements: keys lie half a row of banks further than the row before, so that the eight lanes that load
// at once, of two rows, find different banks; values a quarter of that, since there they are of four rows, every second one.
template <int WIDTH>
struct TilesRows {
    static constexpr int KEY = WIDTH + 32, VALUE = WIDTH + 8, TILE = TILES_KEYS * (KEY + VALUE);
    static_assert(WIDTH % 64 == 0, "rows of keys and values begin at the first bank but for what is added");
};

// Two elements as a fragment's register has them.
template <class T>
__device__ inline unsigned int pair_of(float low, float high) {
    if (Mma<T>::HAS) {
        return Mma<T>::pair(low, high);
    }
    return narrowed<T>(low).bits | (unsigned int)narrowed<T>(high).bits << 16;
}

// Brings eight elements of a head to shared memory, or zeros: behind the thread's back where they are kept as they are used.
template <class T, class S>
struct Bringing {
    __device__ static void bring(T* into, const unsigned char* head, unsigned int at, unsigned int width, bool there) {
        Eight eight = {{0, 0, 0, 0}};
        if (there) {
            S stored;
            float wide[8];
            stored.load(head, at, width);
            stored.widened(wide);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                eight.words[i] = pair_of<T>(wide[2 * i], wide[2 * i + 1]);
            }
        }
        *(Eight*)into = eight;
    }
};

template <class T>
struct Bringing<T, Whole<T>> {
    __device__ static void bring(T* into, const unsigned char* head, unsigned int at, unsigned int, bool there) {
        copy_behind(into, head + (there ? at * sizeof(T) : 0), there);
    }
};

// Begins to bring `count` keys and values, whose keys are at `places`; the rest of the tile is zero.
template <class T, class S, int WIDTH, class A>
__device__ inline void begin_tile(const A& arguments, const unsigned char* const* places, T* keys, unsigned int count) {
    typedef TilesRows<WIDTH> Rows;
    constexpr int EIGHTS = WIDTH / 8, EVERY = TILES_THREADS / EIGHTS;
    unsigned int place = threadIdx.x / EIGHTS, at = threadIdx.x % EIGHTS * 8, width = arguments.head_dim;
    unsigned int beyond = rows_of_record(arguments) * S::bytes(width);
    T *key = keys + place * Rows::KEY + at, *value = keys + TILES_KEYS * Rows::KEY + place * Rows::VALUE + at;
    const unsigned char* heads[TILES_KEYS / EVERY];
#pragma unroll
    for (int i = 0; i < TILES_KEYS / EVERY; i++) {
        heads[i] = places[place + i * EVERY];
    }
    count = at < width ? count : 0;
#pragma unroll
    for (int i = 0; i < TILES_KEYS / EVERY; i++) {
        bool there = place + i * EVERY < count;
        Bringing<T, S>::bring(key + i * EVERY * Rows::KEY, heads[i], at, width, there);
        Bringing<T, S>::bring(value + i * EVERY * Rows::VALUE, heads[i] + beyond, at, width, there);
    }
}

// A warp's queries: a lane has eight elements of every 32 of query lane / 4 and of the one eight further on.
template <class T, int WIDTH>
__device__ inline void load_queries(const T* from, const Asking& asking, unsigned int width, Eight queries[][2]) {
    unsigned int lane = threadIdx.x % WARP, query = threadIdx.x / WARP * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
        unsigned int at = i / 2 * 32 + lane % 4 * 8, own = query + i % 2 * 8;
        Eight none = {{0, 0, 0, 0}};
        bool there = own < asking.count && at < width;
        queries[i / 2][i % 2] = there ? *(const Eight*)(from + own * asking.stride + at) : none;
    }
}

// Scores of a warp's queries and a tile's keys.
template <class T, int WIDTH>
__device__ inline void score_tile(float scores[][4], const Eight queries[][2], const T* keys) {
    constexpr int STRIDE = TilesRows<WIDTH>::KEY;
    unsigned int lane = threadIdx.x % WARP;
    const T* from = keys + lane / 4 * STRIDE + lane % 4 * 8;
#pragma unroll
    for (int group = 0; group < WIDTH / 32; group++) {
        Eight key[TILES_KEYS / 8];
#pragma unroll
        for (int i = 0; i < TILES_KEYS / 8; i++) {
            key[i] = *(const Eight*)(from + i * 8 * STRIDE + group * 32);
        }
        const unsigned int *low = queries[group][0].words, *high = queries[group][1].words;
#pragma unroll
        for (int half = 0; half < 4; half += 2) {
            unsigned int a[4] = {low[half], high[half], low[half + 1], high[half + 1]};
#pragma unroll
            for (int i = 0; i < TILES_KEYS / 8; i++) {
                Mma<T>::add(scores[i], a, key[i].words + half);
            }
        }
    }
}

#define TILES_NOTHING (-__uint_as_float(0x7f800000u))

// Leaves of the scores of keys from `base` on those that are seen: of a lane's two queries the first is at `position`.
__device__ inline void hide_unseen(float scores[][4], unsigned int base, unsigned int position, unsigned int window) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        unsigned int last = position + row * 8, least_seen = window && last >= window ? last + 1 - window : 0;
        // Numbers below zero are large ones.
        unsigned int from = base + threadIdx.x % 4 * 2 - least_seen, count = last - least_seen;
#pragma unroll
        for (int i = 0; i < TILES_KEYS / 4; i++) {
            float* score = &scores[i / 2][2 * row + i % 2];
            *score = from + i / 2 * 8 + i % 2 <= count ? *score : TILES_NOTHING;
        }
    }
}

// What a lane knows of its two queries: the largest score, its share of the weights' sum, and sums of values.
template <int WIDTH>
struct Softened {
    float largest[2], total[2];
    float sums[WIDTH / 8][4];
};

// Takes the scores of a tile in: what came before shrinks where a larger one has come. Weights are pairs of fragments.
template <class T, int WIDTH>
__device__ inline void soften(Softened<WIDTH>& so_far, const float scores[][4], unsigned int weights[][2], float scale) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float largest = so_far.largest[row];
#pragma unroll
        for (int i = 0; i < TILES_KEYS / 8; i++) {
            largest = fmaxf(largest, fmaxf(scores[i][2 * row], scores[i][2 * row + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        // Of a query that has seen nothing all weights are 0.
        float off = largest == TILES_NOTHING ? 0.0f : largest * scale;
        if (largest != so_far.largest[row]) {
            float shrink = power_of_two(fmaf(so_far.largest[row], scale, -off));
            so_far.largest[row] = largest;
            so_far.total[row] *= shrink;
#pragma unroll
            for (int i = 0; i < WIDTH / 8; i++) {
                so_far.sums[i][2 * row] *= shrink;
                so_far.sums[i][2 * row + 1] *= shrink;
            }
        }
#pragma unroll
        for (int i = 0; i < TILES_KEYS / 8; i++) {
            float low = power_of_two(fmaf(scores[i][2 * row], scale, -off));
            float high = power_of_two(fmaf(scores[i][2 * row + 1], scale, -off));
            so_far.total[row] += low + high;
            weights[i][row] = pair_of<T>(low, high);
        }
    }
}

// Adds a tile's values by their weights; those of keys from `needed` on are zero, where it is not ALL of them.
template <class T, int WIDTH, bool ALL>
__device__ inline void weigh_tile(float sums[][4], const unsigned int weights[][2], const T* values, unsigned int needed) {
    constexpr int STRIDE = TilesRows<WIDTH>::VALUE;
    unsigned int lane = threadIdx.x % WARP;
    const T* from = values + lane % 4 * 2 * STRIDE + lane / 4 * 8;
#pragma unroll
    for (int i = 0; i < TILES_KEYS / 16 * (WIDTH / 64); i++) {
        int step = i / (WIDTH / 64), group = i % (WIDTH / 64);
        if (!ALL && step * 16 >= needed) {
            continue;
        }
        // What were columns of scores are the columns that a fragment has as pairs.
        const unsigned int* a = weights[2 * step];
        Eight rows[4];
#pragma unroll
        for (int row = 0; row < 4; row++) {
            rows[row] = *(const Eight*)(from + (step * 16 + row / 2 * 8 + row % 2) * STRIDE + group * 64);
        }
#pragma unroll
        for (int column = 0; column < 8; column++) {
            unsigned int b[2];
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                unsigned int one = rows[2 * pair].words[column / 2], next = rows[2 * pair + 1].words[column / 2];
                b[pair] = column % 2 ? upper_halves(one, next) : lower_halves(one, next);
            }
            Mma<T>::add(sums[group * 8 + column], a, b);
        }
    }
}

// A warp takes a tile of keys and values from position `base` on.
template <class T, int WIDTH>
__device__ inline void take_tile(Softened<WIDTH>& so_far, const Eight queries[][2], const T* keys, const Asking& asking,
                                 unsigned int base, unsigned int window, float scale) {
    unsigned int own = threadIdx.x / WARP * 16, first = asking.position + own, last = first + 15;
    if (own >= asking.count || last < base) {
        return;
    }
    const T* values = keys + TILES_KEYS * TilesRows<WIDTH>::KEY;
    unsigned int needed = last - base + 1, weights[TILES_KEYS / 8][2];
    float scores[TILES_KEYS / 8][4] = {};
    score_tile<T, WIDTH>(scores, queries, keys);
    bool all = base + TILES_KEYS - 1 <= first && (!window || base + window > last);
    if (!all) {
        hide_unseen(scores, base, first + threadIdx.x % WARP / 4, window);
    }
    soften<T, WIDTH>(so_far, scores, weights, scale);
    if (all) {
        weigh_tile<T, WIDTH, true>(so_far.sums, weights, values, needed);
    } else {
        weigh_tile<T, WIDTH, false>(so_far.sums, weights, values, needed);
    }
}

// Writes a lane's results; a query of padding has seen nothing and stays.
template <class T, int WIDTH>
__device__ inline void put_results(const Softened<WIDTH>& so_far, T* into, const Asking& asking, unsigned int width) {
    unsigned int lane = threadIdx.x % WARP;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float total = so_far.total[row];
        total += __shfl_xor_sync(ALL_LANES, total, 1);
        total += __shfl_xor_sync(ALL_LANES, total, 2);
        float share = 1.0f / total;
        unsigned int query = threadIdx.x / WARP * 16 + lane / 4 + row * 8;
        if (query >= asking.count || asking.position + query < asking.first) {
            continue;
        }
        Eight* results = (Eight*)(into + (unsigned long long)query * asking.stride) + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < WIDTH / 32; i++) {
            const float(*sums)[4] = so_far.sums + i / 2 * 8;
            int column = 2 * row + i % 2, eight = i / 2 * 8 + i % 2;
            Eight result;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                result.words[j] = pair_of<T>(sums[2 * j][column] * share, sums[2 * j + 1][column] * share);
            }
            if ((lane % 4 * 2 + eight) * 8 < width) {
                results[eight] = result;
            }
        }
    }
}

// The same on CUDA cores, where tensor cores lack the type: some queries after others.
template <class T, class S, class A>
__device__ inline void attend_in_parts(const A& arguments, const Asking& asking, void* shared) {
    constexpr unsigned int TOGETHER = TILES_THREADS / PROMPT_KEYS;
    for (unsigned int from = 0; from < asking.count; from += TOGETHER) {
        Asking part = asking;
        part.count = least(TOGETHER, asking.count - from);
        part.position += from;
        part.at += from * asking.stride;
        part.end = part.position + part.count;
        attend_plainly<T, S>(arguments, part, shared);
    }
}

template <class T, class S, int WIDTH, class A>
__device__ inline void attend_in_tiles(const A& arguments, const Asking& asking, void* shared) {
    constexpr int TILE = TilesRows<WIDTH>::TILE;
    // Where the keys of two tiles are, which are looked up once for all threads and a tile before they are needed. Past the last
    // position any will do.
    const unsigned char** places = (const unsigned char**)shared;
    T* tiles = (T*)(places + 2 * TILES_KEYS);
    unsigned int thread = threadIdx.x, turn = 0;
    if (thread < 2 * TILES_KEYS) {
        places[thread] = key_of<S>(arguments, asking.row, least(asking.begin + thread, asking.end - 1));
    }
    __syncthreads();
    begin_tile<T, S, WIDTH>(arguments, places, tiles, asking.end - asking.begin);
    end_of_group();
    T* own = (T*)arguments.queries + asking.at;
    Eight queries[WIDTH / 32][2];
    load_queries<T, WIDTH>(own, asking, arguments.head_dim, queries);
    Softened<WIDTH> so_far = {{TILES_NOTHING, TILES_NOTHING}};
    for (unsigned int base = asking.begin; base < asking.end; base += TILES_KEYS, turn ^= 1) {
        wait_for_groups<0>();
        // All threads' copies of this tile have come, and nobody reads the buffer that is written next.
        __syncthreads();
        unsigned int left = asking.end - base;
        if (left > TILES_KEYS) {
            begin_tile<T, S, WIDTH>(arguments, places + (turn ^ 1) * TILES_KEYS, tiles + (turn ^ 1) * TILE, left - TILES_KEYS);
        }
        end_of_group();
        // Of powers of two and not of e.
        float scale = arguments.scale * 1.4426950408889634f;
        take_tile<T, WIDTH>(so_far, queries, tiles + turn * TILE, asking, base, arguments.window, scale);
        if (thread < TILES_KEYS && left > 2 * TILES_KEYS) {
            unsigned int behind = least(base + 2 * TILES_KEYS + thread, asking.end - 1);
            places[turn * TILES_KEYS + thread] = key_of<S>(arguments, asking.row, behind);
        }
    }
    put_results<T, WIDTH>(so_far, own, asking, arguments.head_dim);
}

template <class T, class S, int WIDTH, bool PLAIN, class A>
__device__ void attend_tiles(const A& arguments) {
    DYNAMIC_SHARED(shared);
    Asking asking = asking_of<TILES_QUERIES>(arguments);
    if (asking.begin >= asking.end) {
        return;
    }
    if (PLAIN || !Mma<T>::HAS) {
        attend_in_parts<T, S>(arguments, asking, shared);
    } else {
        attend_in_tiles<T, S, WIDTH>(arguments, asking, shared);
    }
}

// Blocks that a multiprocessor has registers for: more of them hide the latency of memory.
template <class T, int WIDTH, bool PLAIN>
struct TilesBeside {
    static constexpr int BLOCKS = PLAIN || !Mma<T>::HAS ? 1 : WIDTH > 64 ? 3 : 4;
};

#define TILES(NAME, ARGUMENTS, TYPE, STORED, WIDTH, PLAIN)                                                     \
    KERNEL_OF_BLOCKS(NAME, ARGUMENTS, TILES_THREADS, (TilesBeside<TYPE, WIDTH, PLAIN>::BLOCKS),              \
                     attend_tiles<TYPE, STORED, WIDTH, PLAIN>)

#define TILES_OF(TYPE, WIDTH)                                                                                  \
    TILES(attend_tiles_##TYPE##_w##WIDTH##_whole, PromptArguments, TYPE, Whole<TYPE>, WIDTH, false)          \
    TILES(attend_tiles_##TYPE##_w##WIDTH##_packed, PromptArguments, TYPE, Packed, WIDTH, false)              \
    TILES(attend_tiles_mixed_##TYPE##_w##WIDTH##_whole, Mixed<PromptArguments>, TYPE, Whole<TYPE>, WIDTH, false)

TILES_OF(f16, 64)
TILES_OF(f16, 128)
TILES_OF(bf16, 64)
TILES_OF(bf16, 128)

// What stands in where tensor cores lack the type, by its own name so that it is tested everywhere.
TILES(attend_tiles_plain_bf16_w64_whole, PromptArguments, bf16, Whole<bf16>, 64, true)
