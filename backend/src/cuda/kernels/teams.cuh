// Attention's loop over positions on CUDA cores, for heads of any size and however they are kept.
//
// Threads are teams of as many lanes as a head has eights of elements; a team takes SIDE neighbouring positions at a time, so that
// loads overlap. The sums of these over a team's lanes are taken together: at each step a lane hands over those that another
// goes on with, so that in the end it has one score, of which it alone makes a weight.
#pragma once
#include "split.cuh"

template <class T, class S, int MOST, int SIDE>
struct Teams {
    static constexpr int HEADS = MOST;
    static constexpr int VALUES = HEADS * ATTENTION_WARPS * 256;

    float queries[HEADS][8];
    float values[HEADS][8];
    float denominators[HEADS], maxima[HEADS];
    unsigned int lanes, teams, team, lane;
    bool active;

    // The block's queries; elements past the head's are zero, and all of them where the block has fewer.
    template <class A>
    __device__ void ask(const A& arguments, const Heads& own) {
        // At least as many as there are positions side by side.
        lanes = 8;
        while (lanes * 8 < arguments.head_dim) {
            lanes *= 2;
        }
        teams = ATTENTION_THREADS / lanes;
        team = threadIdx.x / lanes;
        lane = threadIdx.x % lanes;
        active = lane * 8 < arguments.head_dim;
        const T* from = (const T*)arguments.queries + of_batch(arguments, own.query) * arguments.head_dim;
#pragma unroll
        for (int head = 0; head < HEADS; head++) {
            unsigned int width = head < own.count ? arguments.head_dim : 0;
            widened_head(from + head * arguments.head_dim, lane * 8, width, queries[head]);
        }
    }

    // The lane's score of a head, that of its position.
    __device__ float score(const S* keys, int head) const {
        float sums[SIDE];
#pragma unroll
        for (int u = 0; u < SIDE; u++) {
            float elements[8];
            keys[u].widened(elements);
            sums[u] = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sums[u] = fmaf(queries[head][i], elements[i], sums[u]);
            }
            // A lane past the head's end has numbers of nothing.
            sums[u] = active ? sums[u] : 0.0f;
        }
        unsigned int mask = lanes / 2;
#pragma unroll
        for (int half = SIDE / 2; half > 0; half /= 2) {
            bool upper = lane & mask;
#pragma unroll
            for (int i = 0; i < half; i++) {
                float kept = upper ? sums[half + i] : sums[i], given = upper ? sums[i] : sums[half + i];
                sums[i] = kept + __shfl_xor_sync(ALL_LANES, given, mask);
            }
            mask /= 2;
        }
        for (; mask > 0; mask /= 2) {
            sums[0] += __shfl_xor_sync(ALL_LANES, sums[0], mask);
        }
        return sums[0];
    }

    // Which of the positions side by side is the lane's: so many neighbouring lanes have the same.
    __device__ unsigned int alike() const {
        return lanes / SIDE;
    }

    // The lane's weight of those that share phi.
    __device__ float share(const Unified& unified, float score, bool there, bool* left) const {
        float off = score - unified.phi;
        // A NaN leaves the range as well.
        *left |= there && !(off > unified.low && off < unified.high);
        return there ? exponential(off) : 0.0f;
    }

    // The same with a running maximum, by which all that was found before is scaled anew.
    __device__ float synchronise(int head, float score, bool there) {
        float largest = there ? score : -__uint_as_float(0x7f800000u);
        for (unsigned int mask = alike(); mask < lanes; mask *= 2) {
            largest = larger(largest, __shfl_xor_sync(ALL_LANES, largest, mask));
        }
        largest = larger(maxima[head], largest);
        float by = shrinks_by(maxima[head], largest);
        maxima[head] = largest;
        denominators[head] *= by;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            values[head][i] *= by;
        }
        return there ? exponential(score - largest) : 0.0f;
    }

    // Adds the values of positions side by side, of which each lane has the weight of its own.
    __device__ void add(const S* kept, int head, float weight) {
        unsigned int first = threadIdx.x % WARP - lane;
#pragma unroll
        for (int u = 0; u < SIDE; u++) {
            float by = __shfl_sync(ALL_LANES, weight, first + u * alike()), elements[8];
            kept[u].widened(elements);
            denominators[head] += by;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                values[head][i] = fmaf(by, elements[i], values[head][i]);
            }
        }
    }

    __device__ void forget() {
#pragma unroll
        for (int head = 0; head < HEADS; head++) {
            denominators[head] = 0.0f;
            maxima[head] = -__uint_as_float(0x7f800000u);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                values[head][i] = 0.0f;
            }
        }
    }

    // Whether this thread flagged a query.
    template <bool SHARE, class A>
    __device__ bool walk(const A& arguments, const Unified& unified, const Seen& seen, const Heads& own) {
        forget();
        unsigned int key = row_of_record(arguments) * S::bytes(arguments.head_dim);
        unsigned int value = key + rows_of_record(arguments) * S::bytes(arguments.head_dim);
        unsigned int at = active ? lane * 8 : 0;
        // A bit a query whose scores left the range.
        unsigned int left = 0;
        Run run = {nullptr, 0, 0};
        for (unsigned int base = seen.begin + team * SIDE; base - team * SIDE < seen.end; base += teams * SIDE) {
            S keys[SIDE], kept[SIDE];
            unsigned int positions[SIDE];
            const unsigned char* records[SIDE];
#pragma unroll
            for (int u = 0; u < SIDE; u++) {
                // Those past the end stand in as the last one, with no weight.
                positions[u] = least(base + u, seen.end - 1);
            }
            find_records<SIDE>(arguments, run, positions, records);
#pragma unroll
            for (int u = 0; u < SIDE; u++) {
                keys[u].load_once(records[u] + key, at, arguments.head_dim);
                kept[u].load_once(records[u] + value, at, arguments.head_dim);
            }
            bool there = base + lane / alike() < seen.end;
#pragma unroll
            for (int head = 0; head < HEADS; head++) {
                float score = this->score(keys, head) * arguments.scale;
                bool out = false;
                float weight = SHARE ? share(unified, score, there, &out) : synchronise(head, score, there);
                left |= out ? 1u << head : 0u;
                add(kept, head, weight);
            }
        }
        for (int head = 0; SHARE && head < HEADS; head++) {
            if (left >> head & 1u && head < own.count) {
                arguments.overflow[own.query + head] = 1;
            }
        }
        join<SHARE>();
        return SHARE && left;
    }

    // The teams of a warp put together what they found, which all of them have then.
    template <bool SHARE>
    __device__ void join() {
        for (unsigned int mask = lanes; mask < WARP; mask *= 2) {
#pragma unroll
            for (int head = 0; head < HEADS; head++) {
                float largest = SHARE ? maxima[head] : larger(maxima[head], __shfl_xor_sync(ALL_LANES, maxima[head], mask));
                float by = SHARE ? 1.0f : shrinks_by(maxima[head], largest);
                maxima[head] = largest;
                denominators[head] *= by;
                denominators[head] += __shfl_xor_sync(ALL_LANES, denominators[head], mask);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    values[head][i] *= by;
                    values[head][i] += __shfl_xor_sync(ALL_LANES, values[head][i], mask);
                }
            }
        }
    }

    // What this thread found, to where all of the block look.
    __device__ void put(const Found& found, const Heads& own, unsigned int width) const {
        unsigned int warp = threadIdx.x / WARP;
        bool first = threadIdx.x % WARP == lane;
#pragma unroll
        for (int head = 0; head < HEADS; head++) {
            if (!first || head >= own.count) {
                continue;
            }
            unsigned int place = head * ATTENTION_WARPS + warp;
            if (lane == 0) {
                found.denominators[place] = denominators[head];
                found.maxima[place] = maxima[head];
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (lane * 8 + i < width) {
                    found.values[place * width + lane * 8 + i] = values[head][i];
                }
            }
        }
    }
};
