/* kld/base/philox.h - Philox4x32-10, a counter-based random generator.  Floor 0.
 * Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 * The output is a pure function of key and counter, so results do not depend on the
 * order of work, on threads, or on where a run was resumed.  C and CUDA. */
#ifndef KLD_BASE_PHILOX_H
#define KLD_BASE_PHILOX_H
#include <stdint.h>

#ifdef __CUDACC__
#define KLD_HD __host__ __device__
#else
#define KLD_HD
#endif

typedef struct kld_philox_block {
    uint32_t v[4];
} kld_philox_block;

/* The 128 random bits for 128-bit counter (c_lo, c_hi) under a 64-bit key. */
KLD_HD static inline kld_philox_block kld_philox(uint64_t key, uint64_t c_lo, uint64_t c_hi) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    kld_philox_block c;
    c.v[0] = (uint32_t)c_lo;
    c.v[1] = (uint32_t)(c_lo >> 32);
    c.v[2] = (uint32_t)c_hi;
    c.v[3] = (uint32_t)(c_hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c.v[0], p1 = (uint64_t)0xCD9E8D57u * c.v[2];
        kld_philox_block n;
        n.v[0] = (uint32_t)(p1 >> 32) ^ c.v[1] ^ k0;
        n.v[1] = (uint32_t)p1;
        n.v[2] = (uint32_t)(p0 >> 32) ^ c.v[3] ^ k1;
        n.v[3] = (uint32_t)p0;
        c = n;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* Uniform in the open interval (0, 1): (the upper 52 bits + 0.5) * 2^-52, exact. */
KLD_HD static inline double kld_philox_unit(uint32_t hi, uint32_t lo) {
    uint64_t bits = ((uint64_t)hi << 32 | lo) >> 12;
    return ((double)bits + 0.5) * 0x1p-52;
}

#endif
