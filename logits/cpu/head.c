/* Statistics of rows of logits.  A row is worked on by one thread: maximum, then
 * exponentials and their sums, then the most probable tokens, then draws from the rest. */
#include "kld/base/num.h"
#include "kld/base/philox.h"
#include "logits/cpu/cpu.h"
#include "logits/cpu/vmath.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Columns in a leaf of the sums over the tail. */
enum { LEAF = 256 };

struct head_scratch {
    float *e;       /* [vocab, padded] e^(logit - max); padding 0 */
    float *group;   /* [vocab/16, padded] maxima of groups of columns */
    float *select;  /* the same size, for selection */
    uint64_t *key;  /* [vocab] candidates: ordered logit << 32 | id, ascending = best first */
    float *key_e;   /* [vocab] e of the candidate that key sorts to the same place */
    double *suffix; /* [vocab + 1] mass of candidates j.. and of all that is no candidate */
    double *leaf;   /* [vocab/LEAF + 1] running mass of the tail up to a leaf's end */
};

static size_t padded(size_t n) { return num_cdiv(n, LEAF) * LEAF; }

size_t cpu_head_scratch_struct(void) { return sizeof(struct head_scratch); }

size_t cpu_head_scratch_bytes(const kld_device_spec *spec) {
    size_t v = padded(spec->vocab);
    return 4 * v + 4 * v + 4 * v + 8 * v + 4 * v + 8 * (v + 8) + 8 * v;
}

void cpu_head_scratch_init(struct head_scratch *s, const kld_device_spec *spec, void *mem) {
    size_t v = padded(spec->vocab);
    s->key = mem;
    s->suffix = (double *)(void *)(s->key + v);
    s->leaf = s->suffix + v + 8;
    s->e = (float *)(void *)(s->leaf + v);
    s->group = s->e + v;
    s->select = s->group + v;
    s->key_e = s->select + v;
}

struct row_sums {
    float max;
    size_t n_groups;
    bool bad;      /* NaN, +Inf or nothing finite */
    double z, dot; /* sum e, sum e * (logit - max) */
};

VM_INLINE void load_row(vf *v, const float *p, size_t k) {
    if (k >= VL) {
        vf_load(v, p);
    } else {
        *v = (vf){0} - INFINITY;
        memcpy(v, p, k * sizeof *p);
    }
}

/* Maximum of the row and of its groups: lane i of `per` consecutive vectors is a group. */
CLONES static void row_max(const float *l, size_t n, size_t per, struct row_sums *s, float *group) {
    const vf low = (vf){0} - INFINITY, inf = (vf){0} + INFINITY;
    vf top = low;
    vi bad = {0};
    size_t g = 0;
    for (size_t i = 0; i < n; g += VL) {
        vf best = low;
        for (size_t end = num_min(n, i + per * VL); i < end; i += VL) {
            vf v;
            load_row(&v, l + i, n - i);
            bad |= ~(v < inf);
            vi more = v > best;
            vf_select(&best, &more, &v, &best);
        }
        vf_store(group + g, &best);
        vi more = best > top;
        vf_select(&top, &more, &best, &top);
    }
    s->max = vf_max(&top);
    s->n_groups = g;
    int32_t any[VL], all = 0;
    memcpy(any, &bad, sizeof any);
    for (int i = 0; i < VL; i++) all |= any[i];
    s->bad = all != 0 || s->max == -INFINITY;
}

/* e and the two sums: FP64, lane i adds columns i, i+16, ..., then a fixed tree.  A logit
 * so low that e is 0 adds nothing to the second sum either, be it -inf. */
CLONES static void row_exp(const float *l, size_t n, struct row_sums *s, float *e) {
    vd z = {0}, dot = {0};
    const vf floor = (vf){0} - 128.0f;
    for (size_t i = 0; i < n; i += VL) {
        vf v, x;
        load_row(&v, l + i, n - i);
        v -= s->max;
        vf_exp(&x, &v);
        vf_store(e + i, &x);
        vi low = v < floor;
        vf_select(&v, &low, &floor, &v);
        vd xd = __builtin_convertvector(x, vd), vdd = __builtin_convertvector(v, vd);
        z += xd;
        dot += xd * vdd;
    }
    s->z = vd_sum(&z);
    s->dot = vd_sum(&dot);
}

/* Sum of one leaf of e (LEAF values): lane i adds columns i, i+16, ..., then a tree. */
CLONES static double leaf_sum(const float *e) {
    vd sum = {0};
    for (size_t i = 0; i < LEAF; i += VL) {
        vf v;
        vf_load(&v, e + i);
        sum += __builtin_convertvector(v, vd);
    }
    return vd_sum(&sum);
}

/* Ids whose logit is at least `least`, in order of id.  Returns their number. */
CLONES static size_t collect(const float *l, size_t n, float least, uint64_t *key) {
    size_t m = 0;
    for (size_t i = 0; i < n; i += VL) {
        size_t k = n - i < VL ? n - i : VL;
        if (k == VL) {
            vf v;
            vf_load(&v, l + i);
            vi hit = v >= least;
            int64_t any[VL / 2], all = 0;
            memcpy(any, &hit, sizeof any);
            for (int j = 0; j < VL / 2; j++) all |= any[j];
            if (!all) continue;
        }
        for (size_t j = i; j < i + k; j++) {
            if (!(l[j] >= least)) continue;
            /* Larger floats get smaller keys; -0 and +0 are one value. */
            float f = l[j] + 0.0f;
            uint32_t u;
            memcpy(&u, &f, sizeof u);
            u = u >> 31 ? u : ~u & 0x7fffffffu;
            key[m++] = (uint64_t)u << 32 | j;
        }
    }
    return m;
}

static void swap_f32(float *a, float *b) {
    float t = *a;
    *a = *b;
    *b = t;
}

/* The k-th largest (k >= 1) of n values, which are reordered. */
static float kth_largest(float *v, size_t n, size_t k) {
    size_t lo = 0, hi = n - 1, want = k - 1;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (v[mid] > v[lo]) swap_f32(&v[mid], &v[lo]);
        if (v[hi] > v[lo]) swap_f32(&v[hi], &v[lo]);
        if (v[hi] > v[mid]) swap_f32(&v[hi], &v[mid]);
        float pivot = v[mid];
        size_t i = lo, j = hi;
        for (;;) {
            while (v[i] > pivot) i++;
            while (v[j] < pivot) j--;
            if (i >= j) break;
            swap_f32(&v[i++], &v[j--]);
        }
        if (want <= j) hi = j;
        else lo = j + 1;
    }
    return v[want];
}

/* Heap sort: no worst case, and rows are short. */
static void sift(uint64_t *v, size_t i, size_t n) {
    uint64_t x = v[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && v[c + 1] > v[c]) c++;
        if (v[c] <= x) break;
        v[i] = v[c];
    }
    v[i] = x;
}

static void sort_keys(uint64_t *v, size_t n) {
    for (size_t i = n / 2; i-- > 0;) sift(v, i, n);
    for (size_t m = n; m-- > 1;) {
        uint64_t t = v[0];
        v[0] = v[m];
        v[m] = t;
        sift(v, 0, m);
    }
}

static uint32_t key_id(uint64_t key) { return (uint32_t)key; }

struct row_job {
    const float *l;
    size_t n, row; /* columns; row of the records */
    const kld_head_args *a;
    kld_records *rec;
    double lse;
};

static double lp_of(const struct row_job *j, uint32_t id) {
    return id < j->n ? (double)j->l[id] - j->lse : -INFINITY;
}

/* Candidates: every token whose logit reaches the k-th largest group maximum.  At least k
 * tokens do, so the k most probable are among them. */
static size_t candidates(const struct row_job *j, struct head_scratch *s,
                         const struct row_sums *sums, size_t k) {
    float least = -INFINITY;
    if (k < sums->n_groups) {
        memcpy(s->select, s->group, sums->n_groups * sizeof *s->group);
        least = kth_largest(s->select, sums->n_groups, k);
    }
    size_t m = collect(j->l, j->n, least, s->key);
    sort_keys(s->key, m);
    for (size_t i = 0; i < m; i++) {
        s->key_e[i] = s->e[key_id(s->key[i])];
        s->e[key_id(s->key[i])] = 0;
    }
    return m;
}

/* Fill the list; on return e holds the tail alone and leaf its running sums. */
static void list_row(const struct row_job *j, struct head_scratch *s, const struct row_sums *sums) {
    const kld_head_args *a = j->a;
    kld_records *rec = j->rec;
    size_t k = num_min(a->top_k, j->n), n_leaf = num_cdiv(j->n, LEAF);
    size_t m = candidates(j, s, sums, k);
    /* Masses from the smallest up, so that nothing is ever subtracted. */
    double rest = 0;
    for (size_t i = 0; i < n_leaf; i++) {
        s->leaf[i] = leaf_sum(s->e + i * LEAF);
        rest += s->leaf[i];
    }
    s->suffix[m] = rest;
    for (size_t i = m; i-- > 0;) s->suffix[i] = s->suffix[i + 1] + (double)s->key_e[i];
    size_t c = num_min(num_max(a->min_k, 1), k);
    while (c < k && s->suffix[c] > a->tail_mass * sums->z) c++;
    for (size_t i = 0; i < c; i++) {
        rec->ids[j->row * rec->k_ld + i] = key_id(s->key[i]);
        rec->lp[j->row * rec->k_ld + i] = lp_of(j, key_id(s->key[i]));
    }
    rec->count[j->row] = (uint32_t)c;
    rec->tail_mass[j->row] = (float)(s->suffix[c] / sums->z);
    if (!rec->m) return;
    for (size_t i = c; i < m; i++) s->e[key_id(s->key[i])] = s->key_e[i];
    for (size_t i = c; i < m; i++) {
        size_t leaf = key_id(s->key[i]) / LEAF;
        s->leaf[leaf] = leaf_sum(s->e + leaf * LEAF);
    }
    for (size_t i = 1; i < n_leaf; i++) s->leaf[i] += s->leaf[i - 1];
}

/* First id of the tail whose running mass passes u times the whole. */
static uint32_t draw(const struct head_scratch *s, size_t n, double u) {
    size_t n_leaf = num_cdiv(n, LEAF), lo = 0, hi = n_leaf - 1;
    double target = u * s->leaf[n_leaf - 1];
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->leaf[mid] > target) hi = mid;
        else lo = mid + 1;
    }
    double run = lo ? s->leaf[lo - 1] : 0;
    uint32_t last = UINT32_MAX;
    for (size_t i = lo * LEAF; i < num_min(n, (lo + 1) * LEAF); i++) {
        if (s->e[i] == 0) continue;
        last = (uint32_t)i;
        run += (double)s->e[i];
        if (run > target) break;
    }
    return last; /* rounding may leave run a hair short; then the leaf's last id */
}

static void draw_row(const struct row_job *j, const struct head_scratch *s, size_t pos) {
    kld_records *rec = j->rec;
    bool none = !(s->leaf[num_cdiv(j->n, LEAF) - 1] > 0);
    for (size_t d = 0; d < rec->m; d++) {
        size_t at = j->row * rec->m + d;
        kld_philox_block b = kld_philox(j->a->seed, (uint64_t)pos << 32 | d / 2, j->a->window);
        double u = d % 2 ? kld_philox_unit(b.v[2], b.v[3]) : kld_philox_unit(b.v[0], b.v[1]);
        rec->tail_ids[at] = none ? UINT32_MAX : draw(s, j->n, u);
        rec->tail_lp[at] = none ? (double)NAN : lp_of(j, rec->tail_ids[at]);
    }
}

static void gather_row(const struct row_job *j, size_t r, bool bad) {
    const kld_head_args *a = j->a;
    kld_records *rec = j->rec;
    for (size_t i = 0; a->ref_count && i < num_min(a->ref_count[r], rec->ref_ld); i++)
        rec->ref_lp[j->row * rec->ref_ld + i] =
            bad ? (double)NAN : lp_of(j, a->ref_ids[r * a->ref_ids_ld + i]);
    for (size_t i = 0; a->ref_tail_ids && i < rec->ref_m; i++) {
        uint32_t id = a->ref_tail_ids[r * rec->ref_m + i];
        rec->ref_tail_lp[j->row * rec->ref_m + i] =
            bad || id == UINT32_MAX ? (double)NAN : lp_of(j, id);
    }
}

static void bad_row(const struct row_job *j) {
    kld_records *rec = j->rec;
    size_t r = j->row;
    rec->count[r] = 0;
    rec->label_lp[r] = rec->lse[r] = rec->entropy[r] = rec->tail_mass[r] = NAN;
    for (size_t i = 0; i < rec->m; i++) {
        rec->tail_ids[r * rec->m + i] = UINT32_MAX;
        rec->tail_lp[r * rec->m + i] = (double)NAN;
    }
}

static bool stats_row(struct row_job *j, size_t r, struct head_scratch *s) {
    const kld_head_args *a = j->a;
    struct row_sums sums;
    /* Enough groups that the k-th largest of them is a tight bound; at most 64 vectors a
     * group, where collecting costs more than finding the bound. */
    size_t k = num_min(a->top_k, j->n), per = num_max(1, num_min(64, j->n / (32 * num_max(k, 1))));
    row_max(j->l, j->n, per, &sums, s->group);
    j->rec->label[j->row] = a->labels[r];
    if (sums.bad) {
        bad_row(j);
        gather_row(j, r, true);
        return false;
    }
    memset(s->e + j->n / VL * VL, 0, (padded(j->n) - j->n / VL * VL) * sizeof *s->e);
    row_exp(j->l, j->n, &sums, s->e);
    j->lse = (double)sums.max + log(sums.z);
    j->rec->lse[j->row] = (float)j->lse;
    double h = log(sums.z) - sums.dot / sums.z;
    j->rec->entropy[j->row] = h > 0 ? (float)h : 0.0f;
    j->rec->label_lp[j->row] = (float)lp_of(j, a->labels[r]);
    list_row(j, s, &sums);
    if (j->rec->m) draw_row(j, s, a->pos + r);
    gather_row(j, r, false);
    return true;
}

/* There is nothing to overlap with: the work is done at the end. */
kld_status cpu_head_begin(kld_device *dev, kld_view logits, const kld_head_args *args,
                          kld_err *err) {
    if (dev->pending.p) return kld_fail(err, KLD_E_INTERNAL, "a second head_begin");
    dev->pending = logits;
    dev->pending_args = *args;
    return KLD_OK;
}

kld_status cpu_head_end(kld_device *dev, kld_records *rec, size_t row0, size_t *nonfinite,
                        size_t *first_bad, kld_err *err) {
    (void)err;
    const kld_view logits = dev->pending;
    const kld_head_args *args = &dev->pending_args;
    size_t bad = 0, first = SIZE_MAX;
#pragma omp parallel for schedule(dynamic, 4) num_threads(dev->threads)                            \
    reduction(+ : bad) reduction(min : first)
    for (size_t r = 0; r < logits.rows; r++) {
        unsigned char *base = (unsigned char *)dev->head;
        void *mine = base + (size_t)omp_get_thread_num() * sizeof(struct head_scratch);
        struct row_job j = {view_row(logits, r), logits.cols, row0 + r, args, rec, 0};
        if (stats_row(&j, r, mine)) continue;
        bad++;
        if (r < first) first = r;
    }
    *nonfinite = bad;
    if (bad) *first_bad = first;
    dev->pending.p = NULL;
    return KLD_OK;
}
