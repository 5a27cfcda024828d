/* The compiled form of merkle.py: the Merkle root of the 64-byte blocks of a buffer.
 *
 * Every message of the tree is one prefix byte and 64 bytes, so BLAKE2b (RFC 7693) needs one
 * compression for it. Several messages are hashed at once, one in each lane of a vector of GCC and
 * Clang. The same code (_merkle_lanes.h) is compiled three times: for AVX-512 with eight lanes,
 * for AVX2 with four, and for what every CPU of a kind has; the CPU chooses at run time.
 *
 * The tree is climbed in two steps of eight levels: 256 leaves to a root (`groups`), then 256 such
 * roots to the root of the sector (`join`). Each step works in place in 8 KiB of stack.
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

#define INLINE static inline __attribute__((always_inline))

/* --- BLAKE2b-256 of 65 bytes, several at once ----------------------------------------------- */

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

#ifndef __has_builtin
#define __has_builtin(name) 0
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

typedef void hasher(uint8_t *out, const uint8_t *in, size_t stride, size_t count, uint64_t prefix);

#define TARGET
#define NAME(name) name##_portable
#define LANES 4
#include "_merkle_lanes.h"

#ifdef __x86_64__
#define TARGET __attribute__((target("avx2")))
#define NAME(name) name##_avx2
#define LANES 4
#define SHUFFLES
#include "_merkle_lanes.h"

#define TARGET __attribute__((target("avx512f")))
#define NAME(name) name##_avx512
#define LANES 8
#include "_merkle_lanes.h"
#endif

/* The forms that this CPU can run, the fastest first. */
static struct {
    const char *name;
    hasher *hash;
} forms[3];
static int form_count;

static void add_form(const char *name, hasher *hash) {
    forms[form_count].name = name;
    forms[form_count++].hash = hash;
}

static void find_forms(void) {
    form_count = 0;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f"))
        add_form("avx512", hash_blocks_avx512);
    if (__builtin_cpu_supports("avx2"))
        add_form("avx2", hash_blocks_avx2);
#endif
    add_form("portable", hash_blocks_portable);
}

/* --- the tree ------------------------------------------------------------------------------ */

static uint8_t zero_roots[DEPTH + 1][HASH]; /* of all-zero subtrees, by height */

static void make_zero_roots(void) {
    const uint8_t zeros[BLOCK] = {0};
    hasher *hash = hash_blocks_portable;
    hash(zero_roots[0], zeros, BLOCK, 1, LEAF_PREFIX);
    for (int height = 0; height < DEPTH; height++) {
        memcpy(zero_roots[height + 1], zero_roots[height], HASH); /* for now: the second child */
        hash(zero_roots[height + 1], zero_roots[height], BLOCK, 1, NODE_PREFIX);
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

/* Writes the roots of the groups of SPAN leaves that the `leaves` blocks at start, start + stride,
 * ... of `size` bytes of data make; the last group may have fewer, and zeros follow. */
static void group_roots(hasher *hash, uint8_t *roots, const uint8_t *data, size_t size,
                        size_t start, size_t stride, size_t leaves) {
    uint8_t level[SPAN * HASH], block[BLOCK] = {0};
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
        memcpy(roots + group * HASH, level, HASH);
    }
}

/* --- the module ---------------------------------------------------------------------------- */

/* NULL, with an error set, when this CPU has no such form. */
static hasher *chosen(int form) {
    if (form >= 0 && form < form_count)
        return forms[form].hash;
    PyErr_Format(PyExc_ValueError, "no such form");
    return NULL;
}

static PyObject *groups(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    Py_ssize_t start, stride, leaves = 0;
    int form = 0;
    if (!PyArg_ParseTuple(args, "y*nn|i:groups", &data, &start, &stride, &form))
        return NULL;
    PyObject *roots = NULL;
    hasher *hash = chosen(form);
    int fits = start >= 0 && stride >= BLOCK;
    if (fits && start < data.len)
        leaves = (data.len - start - 1) / stride + 1;
    fits = fits && leaves <= LEAVES;
    if (hash && !fits)
        PyErr_Format(PyExc_ValueError, "the blocks are not those of one sector");
    else if (hash)
        roots = PyBytes_FromStringAndSize(NULL, (leaves + SPAN - 1) / SPAN * HASH);
    if (roots) {
        uint8_t *out = (uint8_t *)PyBytes_AsString(roots);
        /* For a few leaves the lock is kept: to get it back may take longer than they do. */
        PyThreadState *state = leaves > SPAN ? PyEval_SaveThread() : NULL;
        group_roots(hash, out, data.buf, (size_t)data.len, (size_t)start, (size_t)stride,
                    (size_t)leaves);
        if (state)
            PyEval_RestoreThread(state);
    }
    PyBuffer_Release(&data);
    return roots;
}

static PyObject *join(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer roots;
    int form = 0;
    if (!PyArg_ParseTuple(args, "y*|i:join", &roots, &form))
        return NULL;
    uint8_t level[SPAN * HASH];
    hasher *hash = chosen(form);
    const int fits = roots.len <= (Py_ssize_t)sizeof level && roots.len % HASH == 0;
    if (hash && fits) {
        memcpy(level, roots.buf, (size_t)roots.len);
        climb(hash, level, (size_t)roots.len / HASH, STEP);
    } else if (hash) {
        PyErr_Format(PyExc_ValueError, "the roots are not those of one sector");
    }
    PyBuffer_Release(&roots);
    return hash && fits ? PyBytes_FromStringAndSize((const char *)level, HASH) : NULL;
}

static int prepare(PyObject *module) {
    find_forms();
    make_zero_roots();
    PyObject *names = PyTuple_New(form_count);
    for (int form = 0; names && form < form_count; form++) {
        PyObject *name = PyUnicode_FromString(forms[form].name);
        if (!name || PyTuple_SetItem(names, form, name)) /* which takes the reference */
            Py_CLEAR(names);
    }
    const int failed = !names || PyModule_AddObjectRef(module, "FORMS", names);
    Py_XDECREF(names);
    return failed ? -1 : 0;
}

static PyMethodDef methods[] = {
    {"groups", groups, METH_VARARGS, "groups(data, start, stride, form=0) -> bytes"},
    {"join", join, METH_VARARGS, "join(roots, form=0) -> bytes"},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_merkle", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__merkle(void) {
    return PyModuleDef_Init(&definition);
}
