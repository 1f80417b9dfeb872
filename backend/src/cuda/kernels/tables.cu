// Small tables that other kernels read, made on the device so that the host need not copy them there between kernels.
#include "elements.cuh"

#define PAGES_MOST 16

struct PagesArguments {
    unsigned long long pages[PAGES_MOST]; // where each page of a cache is
    unsigned int ends[PAGES_MOST];        // past the last position that each page holds
    unsigned long long* into_pages;       // [PAGES_MOST]
    unsigned int* into_ends;              // [PAGES_MOST]
};

// One block of a warp.
__device__ void write_pages(const PagesArguments& arguments) {
    for (unsigned int i = threadIdx.x; i < PAGES_MOST; i += WARP) {
        arguments.into_pages[i] = arguments.pages[i];
        arguments.into_ends[i] = arguments.ends[i];
    }
}

struct PlacesArguments {
    const unsigned int* firsts; // [sequences]: padding in front of each; null: none
    unsigned int* places;       // [sequences, query_len]
    unsigned int count;         // of places
    unsigned int query_len;
    unsigned int position;      // of the first new token of each sequence
};

// The position of each token in its own text, which begins after the padding; that of padding is 0.
__device__ void write_places(const PlacesArguments& arguments) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < arguments.count) {
        unsigned int position = arguments.position + i % arguments.query_len;
        unsigned int first = arguments.firsts ? arguments.firsts[i / arguments.query_len] : 0;
        arguments.places[i] = position < first ? 0 : position - first;
    }
}

KERNEL(put_pages, PagesArguments, WARP, write_pages)
KERNEL(put_places, PlacesArguments, 256, write_places)
