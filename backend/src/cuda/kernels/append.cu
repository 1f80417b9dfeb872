// Fresh keys and values to the records of a page, [position][key, then value][row][head], where a row is a key/value head of a
// sequence. Heads that are whole eights are copied in the order of the records, 16 bytes a thread. For others there is a block of
// two warps a row and a fresh position, rows side by side: a warp for the key, the other for the value.
#include "mixed.cuh"

struct AppendArguments {
    const void* keys;             // [sequences, query_len, kv_heads, head_dim]
    const void* values;           // the same
    unsigned char* page;          // [positions] records
    unsigned int row_start, rows; // of the cache, rows row_start .. row_start + rows lie here
    unsigned int kv_heads, head_dim, query_len;
    unsigned int start;           // the place in the page of the first fresh key
    unsigned int record_bytes;
};

// Of a fresh position.
__device__ inline void* record_of(const AppendArguments& arguments, unsigned int position) {
    return arguments.page + (unsigned long long)(arguments.start + position) * arguments.record_bytes;
}

// Grids have few blocks but in their first dimension, and prompts have many tokens.
__device__ inline unsigned int row_of(const AppendArguments& arguments) { return blockIdx.x % arguments.rows; }
__device__ inline unsigned int fresh_position(const AppendArguments& arguments) { return blockIdx.x / arguments.rows; }

template <class T>
__device__ inline const T* fresh(const AppendArguments& arguments, const void* from) {
    unsigned int row = arguments.row_start + row_of(arguments);
    unsigned long long sequence = row / arguments.kv_heads;
    unsigned long long token = sequence * arguments.query_len + fresh_position(arguments);
    return (const T*)from + (token * arguments.kv_heads + row % arguments.kv_heads) * arguments.head_dim;
}

__device__ void copy_eights(const AppendArguments& arguments) {
    unsigned int of_head = arguments.head_dim / 8, of_rows = arguments.rows * of_head;
    EACH(i, 2ull * of_rows * arguments.query_len) {
        unsigned int position = i / (2 * of_rows), within = i % (2 * of_rows);
        unsigned int row = arguments.row_start + within % of_rows / of_head;
        unsigned long long token = row / arguments.kv_heads * arguments.query_len + position;
        const Eight* from = (const Eight*)(within < of_rows ? arguments.keys : arguments.values);
        from += (token * arguments.kv_heads + row % arguments.kv_heads) * of_head;
        ((Eight*)record_of(arguments, position))[within] = from[within % of_head];
    }
}

template <class T>
__device__ inline void copy_head(const T* head, T* into, unsigned int head_dim) {
    if (head_dim % 8 == 0 && has_eights(head) && has_eights(into)) {
        for (unsigned int i = threadIdx.x % WARP; i < head_dim / 8; i += WARP) {
            ((Eight*)into)[i] = ((const Eight*)head)[i];
        }
        return;
    }
    for (unsigned int i = threadIdx.x % WARP; i < head_dim; i += WARP) {
        into[i] = head[i];
    }
}

template <class T>
__device__ void append(const AppendArguments& arguments) {
    unsigned int which = threadIdx.x / WARP;
    const T* head = fresh<T>(arguments, which ? arguments.values : arguments.keys);
    T* record = (T*)record_of(arguments, fresh_position(arguments));
    unsigned long long place = which * arguments.rows + row_of(arguments);
    T* into = record + place * arguments.head_dim;
    copy_head(head, into, arguments.head_dim);
}

template <class T>
__device__ void append_packed(const AppendArguments& arguments) {
    unsigned int which = threadIdx.x / WARP;
    const T* head = fresh<T>(arguments, which ? arguments.values : arguments.keys);
    unsigned char* into = (unsigned char*)record_of(arguments, fresh_position(arguments));
    unsigned long long place = which * arguments.rows + row_of(arguments);
    into += place * head_bytes(arguments.head_dim);
    for (unsigned int first = 0; first < arguments.head_dim; first += GROUP) {
        pack_group(head + first, least(GROUP, arguments.head_dim - first), into + first / GROUP * GROUP_BYTES);
    }
}

// Tokens of sequences at different places, each with its own blocks (mixed.cuh). A block of two warps a token and a head.
struct MixedAppendArguments {
    const void* keys;                 // [tokens, kv_heads, head_dim]
    const void* values;               // the same
    const unsigned long long* blocks; // where each is, sequence after sequence
    const unsigned int* starts;       // [sequences]: which of them is the first of each
    const unsigned int* sequences;    // [tokens]: whose each is
    const unsigned int* positions;    // [tokens]: in its sequence
    unsigned int kv_heads, head_dim, block_tokens, record_bytes;
};

template <class T>
__device__ void append_mixed(const MixedAppendArguments& arguments) {
    unsigned int which = threadIdx.x / WARP, token = blockIdx.x, head = blockIdx.y;
    const T* from = (const T*)(which ? arguments.values : arguments.keys);
    from += ((unsigned long long)token * arguments.kv_heads + head) * arguments.head_dim;
    const unsigned long long* own = arguments.blocks + arguments.starts[arguments.sequences[token]];
    T* record = (T*)block_record(own, arguments.block_tokens, arguments.record_bytes, arguments.positions[token]);
    copy_head(from, record + (which * arguments.kv_heads + head) * arguments.head_dim, arguments.head_dim);
}

// Sixteen bits are moved as they are, whatever their type.
KERNEL(append_eights, AppendArguments, 256, copy_eights)
KERNEL_OF_TYPES(append, AppendArguments, 64)
KERNEL_OF_TYPES(append_packed, AppendArguments, 64)
KERNEL_OF_TYPES(append_mixed, MixedAppendArguments, 64)
