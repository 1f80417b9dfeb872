// How a cache keeps keys and values: records in pages, heads whole (ragged where their size is no multiple of 8) or packed.
#pragma once
#include "groups.cuh"

// Where the record of a position is, for arguments that name pages.
template <class A>
__device__ inline unsigned char* record_at(const A& arguments, unsigned int position) {
    unsigned int page = 0, first = 0;
    while (page + 1 < arguments.page_count && position >= arguments.page_ends[page]) {
        first = arguments.page_ends[page];
        page++;
    }
    return (unsigned char*)arguments.pages[page] + (unsigned long long)(position - first) * arguments.record_bytes;
}

// Records that lie one behind the other: of positions from `begin` up to `end`, each so many times their size behind `zero`.
struct Run {
    const unsigned char* zero;
    unsigned int begin, end;
};

// Those of the page that a position is in.
template <class A>
__device__ inline Run run_at(const A& arguments, unsigned int position) {
    unsigned int page = 0, first = 0, end = 0xffffffffu;
    while (page + 1 < arguments.page_count && position >= arguments.page_ends[page]) {
        first = arguments.page_ends[page];
        page++;
    }
    if (page + 1 < arguments.page_count) {
        end = arguments.page_ends[page];
    }
    return Run{(const unsigned char*)arguments.pages[page] - (unsigned long long)first * arguments.record_bytes, first, end};
}

// Where the records of some positions are, which go up and of which most are in the run that is held.
template <int COUNT, class A>
__device__ inline void find_records(const A& arguments, Run& run, const unsigned int* positions, const unsigned char** records) {
    if (positions[0] < run.begin || positions[0] >= run.end) {
        run = run_at(arguments, positions[0]);
    }
    if (positions[COUNT - 1] < run.end) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            records[i] = run.zero + (unsigned long long)positions[i] * arguments.record_bytes;
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            records[i] = record_at(arguments, positions[i]);
        }
    }
}

// How a head's elements are kept: whole.
template <class T>
struct Whole {
    Eight elements;
    __device__ static unsigned int bytes(unsigned int head_dim) {
        return head_dim * sizeof(T);
    }
    __device__ void load(const unsigned char* head, unsigned int first, unsigned int) {
        elements = *(const Eight*)(head + first * sizeof(T));
    }
    // For who reads it once.
    __device__ void load_once(const unsigned char* head, unsigned int first, unsigned int) {
        elements = ::load_once(head + first * sizeof(T), true);
    }
    __device__ void widened(float* into) const {
        widen<T>(elements, into);
    }
};

// Eight elements of a head from `first` on, wherever it lies; zeros for those that it lacks.
template <class T>
__device__ inline void widened_head(const T* head, unsigned int first, unsigned int width, float* into) {
#pragma unroll
    for (unsigned int i = 0; i < 8; i++) {
        into[i] = first + i < width ? to_f32(head[first + i]) : 0.0f;
    }
}

// Whole, of a size that is no multiple of 8: heads then do not begin at multiples of 16 bytes, nor end with full eights.
template <class T>
struct Ragged {
    float elements[8];
    __device__ static unsigned int bytes(unsigned int head_dim) {
        return head_dim * sizeof(T);
    }
    __device__ void load(const unsigned char* head, unsigned int first, unsigned int head_dim) {
        widened_head((const T*)head, first, head_dim, elements);
    }
    __device__ void load_once(const unsigned char* head, unsigned int first, unsigned int head_dim) {
        load(head, first, head_dim);
    }
    __device__ void widened(float* into) const {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            into[i] = elements[i];
        }
    }
};

// In groups of 4-bit codes.
struct Packed {
    unsigned int codes[2];
    unsigned int ends;
    unsigned int shift;
    __device__ static unsigned int bytes(unsigned int head_dim) {
        return head_bytes(head_dim);
    }
    // Past the head's end are codes of nothing, which numbers are made of and nobody uses.
    __device__ void load(const unsigned char* head, unsigned int first, unsigned int) {
        const unsigned int* group = (const unsigned int*)(head + first / GROUP * GROUP_BYTES);
        unsigned int within = first % GROUP;
        codes[0] = group[within % 32 / 4];
        codes[1] = group[within % 32 / 4 + 1];
        ends = group[GROUP_SCALE / 4];
        shift = within / 32 * 4;
    }
    __device__ void load_once(const unsigned char* head, unsigned int first, unsigned int head_dim) {
        load(head, first, head_dim);
    }
    __device__ void widened(float* into) const {
        float scale = to_f32(f16{(unsigned short)(ends & 0xffffu)});
        float minimum = to_f32(f16{(unsigned short)(ends >> 16)});
#pragma unroll
        for (int i = 0; i < 8; i++) {
            unsigned int code = codes[i / 4] >> (i % 4 * 8 + shift) & 15u;
            into[i] = fmaf((float)code, scale, minimum);
        }
    }
};
