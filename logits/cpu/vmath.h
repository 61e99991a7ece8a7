/* logits/cpu/vmath.h - sixteen lanes of FP32 and eight of FP64, written once for every
 * vector width.  Floor 2.  Only element-wise operations and fixed trees, so the bits do
 * not depend on the instruction set.  Included by files whose loops are CLONES. */
#ifndef KLD_LOGITS_CPU_VMATH_H
#define KLD_LOGITS_CPU_VMATH_H
#include <stdint.h>
#include <string.h>

enum { VL = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef double vd __attribute__((vector_size(128)));

#define VM_INLINE static inline __attribute__((always_inline))

/* Pointers rather than values: vectors wider than the baseline have no stable calling
 * convention. */
VM_INLINE void vf_load(vf *v, const float *p) { memcpy(v, p, sizeof *v); }
VM_INLINE void vf_store(float *p, const vf *v) { memcpy(p, v, sizeof *v); }

/* out = mask ? a : b, lane by lane; mask lanes are 0 or -1. */
VM_INLINE void vf_select(vf *out, const vi *mask, const vf *a, const vf *b) {
    *out = (vf)(((vi)*a & *mask) | ((vi)*b & ~*mask));
}

/* e^x, error below 1 ulp.  Results under 2^-126 become 0, arguments above 88.37 count as
 * that; NaN stays NaN.  x = n ln2 + r, |r| <= ln2/2, e^r by a degree-6 polynomial whose
 * first two coefficients are 1 and whose others minimise the largest relative error. */
VM_INLINE void vf_exp(vf *out, const vf *in) {
    const vf zero = {0}, top = zero + 88.37f;
    vf x;
    vi above = *in > top, below = *in < -0x1.5d589ep+6f; /* ln 2^-126 */
    vf_select(&x, &above, &top, in);
    const float big = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
    vf t = x * 0x1.715476p+0f + big;
    vf n = t - big;
    vf r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    vf q = r * 0x1.6a243p-10f + 0x1.1239e4p-7f;
    q = q * r + 0x1.5558f2p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    vf e = (q * (r * r) + r) + 1.0f;
    vi bits = ((vi)t - (vi)(zero + big) + 127) << 23;
    e = e * (vf)bits;
    vf_select(out, &below, &zero, &e);
}

/* Fixed tree over the lanes. */
VM_INLINE double vd_sum(const vd *v) {
    double a[VL];
    memcpy(a, v, sizeof a);
    for (int w = VL / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++) a[i] += a[i + w];
    return a[0];
}

VM_INLINE float vf_max(const vf *v) {
    float a[VL];
    memcpy(a, v, sizeof a);
    for (int w = VL / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++) a[i] = a[i + w] > a[i] ? a[i + w] : a[i];
    return a[0];
}

/* Round to BF16, nearest even; NaN stays NaN. */
VM_INLINE void vf_bf16(vf *v) {
    vu u = (vu)*v;
    vu r = (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
    vi nan = *v != *v;
    vf q = (vf)((u | 0x400000u) & 0xffff0000u), f = (vf)r;
    vf_select(v, &nan, &q, &f);
}

#endif
