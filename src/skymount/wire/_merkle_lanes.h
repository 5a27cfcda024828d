/* BLAKE2b-256 of 65 bytes in every lane of one kind of vector. _merkle.c includes this once for each,
 * after it has defined
 *
 *   NAME(name)  what things are called,
 *   TARGET      the attribute that has the compiler use the CPU's instructions,
 *   LANES       words of 64 bits in a vector: 4 or 8,
 *   SHUFFLES    if words turn faster by shuffling their bytes.
 */
typedef uint64_t NAME(vec) __attribute__((vector_size(LANES * 8)));
typedef uint8_t NAME(vec_bytes) __attribute__((vector_size(LANES * 8)));
#define VEC NAME(vec)
#define VEC_BYTES NAME(vec_bytes)

#if LANES == 4
#define WORDS(at) {load(p[0] + at), load(p[1] + at), load(p[2] + at), load(p[3] + at)}
#else
#define WORDS(at)                                                                                 \
    {load(p[0] + at), load(p[1] + at), load(p[2] + at), load(p[3] + at),                          \
     load(p[4] + at), load(p[5] + at), load(p[6] + at), load(p[7] + at)}
#endif

/* Turns each word right. AVX-512 has an instruction for it, AVX2 does it by shuffling bytes. */
#define TURN_BITS(x, n) ((x) >> (n) | (x) << (64 - (n)))
#if defined SHUFFLES && __has_builtin(__builtin_shufflevector) /* GCC 12, Clang */
#define WORD(at, n)                                                                               \
    at + (n) % 8, at + (n + 1) % 8, at + (n + 2) % 8, at + (n + 3) % 8, at + (n + 4) % 8,         \
        at + (n + 5) % 8, at + (n + 6) % 8, at + (n + 7) % 8
#define TURN_BYTES(x, n)                                                                          \
    ((VEC)__builtin_shufflevector((VEC_BYTES)(x), (VEC_BYTES)(x), WORD(0, n), WORD(8, n),         \
                                  WORD(16, n), WORD(24, n)))
#else
#define TURN_BYTES(x, n) TURN_BITS(x, 8 * (n))
#endif

/* Writes the joined hashes of `count` blocks at in, in + stride, ... `out` may be `in` if the
 * blocks are adjacent: a hash never reaches a block that is yet to be read. */
TARGET static void NAME(hash_blocks)(uint8_t *out, const uint8_t *in, size_t stride, size_t count,
                                     uint64_t prefix) {
    for (size_t done = 0; done < count; done += LANES) {
        const size_t used = count - done < LANES ? count - done : LANES;
        const uint8_t *p[LANES];
        for (size_t lane = 0; lane < LANES; lane++) /* those in excess repeat the last block */
            p[lane] = in + (done + (lane < used ? lane : used - 1)) * stride;

        /* Word i of the message begins a byte before word i of the block, as the prefix is first.
         * Words 9 to 15 are zero. */
        const VEC m[16] = {
            (VEC)WORDS(0) << 8 | prefix, WORDS(7),  WORDS(15), WORDS(23), WORDS(31),
            WORDS(39),                   WORDS(47), WORDS(55), (VEC)WORDS(56) >> 56,
        };
        VEC first[4], v[16];
        for (int i = 0; i < 8; i++)
            v[i] = v[i + 8] = IV[i] - (VEC){0};
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

#undef NAME
#undef TARGET
#undef LANES
#undef SHUFFLES
#undef VEC
#undef VEC_BYTES
#undef WORDS
#undef TURN_BITS
#undef TURN_BYTES
#undef WORD
