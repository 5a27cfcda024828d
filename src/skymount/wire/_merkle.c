/* The compiled form of merkle.py: the Merkle root of the 64-byte blocks of a buffer.
 *
 * Every message of the tree is one prefix byte and 64 bytes, so BLAKE2b (RFC 7693) needs one
 * compression for it. Four messages are hashed at once, one in each lane of a vector of GCC and
 * Clang. The same code is compiled twice: for AVX2, and for what every CPU of a kind has.
 *
 * The tree is climbed in two steps of eight levels: 256 leaves to a root, then 256 such roots to
 * the root of the sector. Each step works in place in 8 KiB of stack; nothing is allocated.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { HASH = 32, BLOCK = 64 }; /* bytes; a block is a leaf or the two children of a node */
enum { LEAF_PREFIX = 0, NODE_PREFIX = 1 };
enum { STEP = 8, SPAN = 1 << STEP };            /* levels climbed at once, hashes that make one */
enum { DEPTH = 2 * STEP, LEAVES = 1 << DEPTH }; /* of the tree of a sector */
enum { LANES = 4 };

#define INLINE static inline __attribute__((always_inline))

/* --- BLAKE2b-256 of 65 bytes, four at once ------------------------------------------------- */

typedef uint64_t vec __attribute__((vector_size(LANES * 8)));
typedef uint8_t vec_bytes __attribute__((vector_size(LANES * 8)));

static const uint64_t IV[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define LITTLE_ENDIAN_WORD(word) __builtin_bswap64(word)
#else
#define LITTLE_ENDIAN_WORD(word) (word)
#endif

INLINE uint64_t load(const uint8_t *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return LITTLE_ENDIAN_WORD(word);
}

INLINE void store(uint8_t *to, uint64_t word) {
    word = LITTLE_ENDIAN_WORD(word);
    memcpy(to, &word, sizeof word);
}

/* Turns each word right. By whole bytes, AVX2 does it in one shuffle, if told to. */
#define TURN_BITS(x, n) ((x) >> (n) | (x) << (64 - (n)))
#ifndef __has_builtin
#define __has_builtin(name) 0
#endif
#if __has_builtin(__builtin_shufflevector) /* GCC 12, Clang */
#define WORD(at, n)                                                                               \
    at + (n) % 8, at + (n + 1) % 8, at + (n + 2) % 8, at + (n + 3) % 8, at + (n + 4) % 8,         \
        at + (n + 5) % 8, at + (n + 6) % 8, at + (n + 7) % 8
#define SHUFFLE(x, ...) ((vec)__builtin_shufflevector((vec_bytes)(x), (vec_bytes)(x), __VA_ARGS__))
#define TURN_BYTES(x, n)                                                                          \
    (avx2 ? SHUFFLE(x, WORD(0, n), WORD(8, n), WORD(16, n), WORD(24, n)) : TURN_BITS(x, 8 * (n)))
#else
#define TURN_BYTES(x, n) TURN_BITS(x, 8 * (n))
#endif

/* The RFC's function G. */
#define MIX(a, b, c, d, x, y)                                                                     \
    v[a] += v[b] + m[x], v[d] ^= v[a], v[d] = TURN_BYTES(v[d], 4);                                \
    v[c] += v[d], v[b] ^= v[c], v[b] = TURN_BYTES(v[b], 3);                                       \
    v[a] += v[b] + m[y], v[d] ^= v[a], v[d] = TURN_BYTES(v[d], 2);                                \
    v[c] += v[d], v[b] ^= v[c], v[b] = TURN_BITS(v[b], 63);

/* One round: the numbers are a line of the RFC's table sigma. */
#define ROUND(s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15)               \
    MIX(0, 4, 8, 12, s0, s1) MIX(1, 5, 9, 13, s2, s3)                                             \
    MIX(2, 6, 10, 14, s4, s5) MIX(3, 7, 11, 15, s6, s7)                                           \
    MIX(0, 5, 10, 15, s8, s9) MIX(1, 6, 11, 12, s10, s11)                                         \
    MIX(2, 7, 8, 13, s12, s13) MIX(3, 4, 9, 14, s14, s15)

/* Writes the joined hashes of `count` blocks at in, in + stride, ... `out` may be `in` if the
 * blocks are adjacent: a hash never reaches a block that is yet to be read. */
INLINE void hash_blocks_with(int avx2, uint8_t *out, const uint8_t *in, size_t stride,
                             size_t count, uint64_t prefix) {
    (void)avx2;
    for (size_t done = 0; done < count; done += LANES) {
        const size_t used = count - done < LANES ? count - done : LANES;
        const uint8_t *p[LANES];
        for (size_t lane = 0; lane < LANES; lane++) /* those in excess repeat the last block */
            p[lane] = in + (done + (lane < used ? lane : used - 1)) * stride;

        /* Word i of the message begins a byte before word i of the block, as the prefix is first.
         * Words 9 to 15 are zero. */
#define WORDS(at) {load(p[0] + at), load(p[1] + at), load(p[2] + at), load(p[3] + at)}
        const vec m[16] = {
            (vec)WORDS(0) << 8 | prefix, WORDS(7),  WORDS(15), WORDS(23), WORDS(31),
            WORDS(39),                   WORDS(47), WORDS(55), (vec)WORDS(56) >> 56,
        };
        vec first[4], v[16];
        for (int i = 0; i < 8; i++)
            v[i] = v[i + 8] = IV[i] - (vec){0};
        v[0] ^= 0x01010000 ^ HASH; /* no key, fan-out 1, depth 1 */
        v[12] ^= BLOCK + 1;        /* bytes hashed so far */
        v[14] = ~v[14];            /* this is the last compression */
        memcpy(first, v, sizeof first);
        ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
        ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3)
        ROUND(11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4)
        ROUND(7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8)
        ROUND(9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13)
        ROUND(2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9)
        ROUND(12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11)
        ROUND(13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10)
        ROUND(6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5)
        ROUND(10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0)
        ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
        ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3)
        for (int i = 0; i < 4; i++)
            v[i] ^= first[i] ^ v[i + 8];

        for (size_t lane = 0; lane < used; lane++, out += HASH)
            for (int i = 0; i < 4; i++)
                store(out + 8 * i, v[i][lane]);
    }
}

typedef void hasher(uint8_t *out, const uint8_t *in, size_t stride, size_t count, uint64_t prefix);

static void hash_blocks(uint8_t *out, const uint8_t *in, size_t stride, size_t count,
                        uint64_t prefix) {
    hash_blocks_with(0, out, in, stride, count, prefix);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void
hash_blocks_avx2(uint8_t *out, const uint8_t *in, size_t stride, size_t count, uint64_t prefix) {
    hash_blocks_with(1, out, in, stride, count, prefix);
}
#endif

static hasher *fastest(void) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return hash_blocks_avx2;
#endif
    return hash_blocks;
}

/* --- the tree ------------------------------------------------------------------------------ */

static uint8_t zero_roots[DEPTH + 1][HASH]; /* of all-zero subtrees, by height */

static void make_zero_roots(void) {
    const uint8_t zeros[BLOCK] = {0};
    hash_blocks(zero_roots[0], zeros, BLOCK, 1, LEAF_PREFIX);
    for (int height = 0; height < DEPTH; height++) {
        memcpy(zero_roots[height + 1], zero_roots[height], HASH); /* for now: the second child */
        hash_blocks(zero_roots[height + 1], zero_roots[height], BLOCK, 1, NODE_PREFIX);
    }
}

/* Climbs STEP levels from the first `count` hashes of `level`, with zero subtrees to their right.
 * Leaves the root in the first place. */
static void climb(hasher *hash, uint8_t level[SPAN * HASH], size_t count, int height) {
    const int top = height + STEP;
    if (!count)
        memcpy(level, zero_roots[top], HASH);
    for (; count && height < top; height++) {
        if (count % 2)
            memcpy(level + count * HASH, zero_roots[height], HASH);
        count = (count + 1) / 2;
        hash(level, level, BLOCK, count, NODE_PREFIX);
    }
}

static int is_zero(const uint8_t *block) {
    static const uint8_t zeros[BLOCK];
    return !memcmp(block, zeros, BLOCK);
}

/* Writes the root of the `leaves` blocks at start, start + stride, ... of `size` bytes of data. */
static void tree_root(hasher *hash, uint8_t root[HASH], const uint8_t *data, size_t size,
                      size_t start, size_t stride, size_t leaves) {
    uint8_t groups[SPAN * HASH], level[SPAN * HASH], block[BLOCK] = {0};
    size_t used = 0; /* groups up to the last one that is not all zeros */
    for (size_t group = 0; group * SPAN < leaves; group++) {
        const size_t at = start + group * SPAN * stride;
        size_t whole = leaves - group * SPAN < SPAN ? leaves - group * SPAN : SPAN, part = 0;
        const size_t last = at + (whole - 1) * stride;
        if (size - last < BLOCK) {
            whole--;
            memcpy(block, data + last, size - last);
            part = !is_zero(block);
        }
        while (!part && whole && is_zero(data + at + (whole - 1) * stride))
            whole--;
        hash(level, data + at, stride, whole, LEAF_PREFIX);
        hash(level + whole * HASH, block, BLOCK, part, LEAF_PREFIX);
        climb(hash, level, whole + part, 0);
        memcpy(groups + group * HASH, level, HASH);
        if (whole + part)
            used = group + 1;
    }
    climb(hash, groups, used, STEP);
    memcpy(root, groups, HASH);
}

/* --- the module ---------------------------------------------------------------------------- */

static PyObject *root(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    Py_ssize_t start, stride, leaves = 0;
    int portable = 0;
    if (!PyArg_ParseTuple(args, "y*nn|p:root", &data, &start, &stride, &portable))
        return NULL;
    int fits = start >= 0 && stride >= BLOCK;
    if (fits && start < data.len)
        leaves = (data.len - start - 1) / stride + 1;
    fits = fits && leaves <= LEAVES;
    uint8_t hash[HASH];
    if (fits) {
        /* For a few leaves the lock is kept: to get it back may take longer than they do. */
        PyThreadState *state = leaves > SPAN ? PyEval_SaveThread() : NULL;
        tree_root(portable ? hash_blocks : fastest(), hash, data.buf, (size_t)data.len,
                  (size_t)start, (size_t)stride, (size_t)leaves);
        if (state)
            PyEval_RestoreThread(state);
    }
    PyBuffer_Release(&data);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "the blocks are not those of one sector");
    return PyBytes_FromStringAndSize((const char *)hash, HASH);
}

static int prepare(PyObject *module) {
    make_zero_roots();
    return PyModule_AddObjectRef(module, "AVX2", fastest() == hash_blocks ? Py_False : Py_True);
}

static PyMethodDef methods[] = {
    {"root", root, METH_VARARGS, "root(data, start, stride, portable=False) -> bytes"},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_merkle", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__merkle(void) {
    return PyModuleDef_Init(&definition);
}
