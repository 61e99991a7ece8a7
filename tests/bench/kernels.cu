#include "tests/bench/kernels.h"

#include "logits/cuda/head.cuh"
#include "logits/cuda/pair.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

enum { ROWS = 2048, COLS = 154880, SAMPLES = 15 };

static void check(cudaError_t e) {
    if (e == cudaSuccess) return;
    std::fprintf(stderr, "bench: %s\n", cudaGetErrorString(e));
    std::exit(1);
}

template <typename T> static T *device(size_t n) {
    void *p;
    check(cudaMalloc(&p, n * sizeof(T)));
    return (T *)p;
}

/* Roughly normal with a deviation of 2.7, as the PyTorch peer's logits; `noise` beside them. */
template <typename T> __global__ static void fill(T *p, size_t n, float noise) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        float v[2];
        for (int k = 0; k < 2; k++) {
            unsigned long long s = (i * 2 + k) * 0x9E3779B97F4A7C15ull;
            s = (s ^ s >> 30) * 0xBF58476D1CE4E5B9ull;
            s = (s ^ s >> 27) * 0x94D049BB133111EBull;
            s ^= s >> 31;
            float sum = -2;
            for (int j = 0; j < 4; j++) sum += (float)(s >> 16 * j & 65535) / 65536.0f;
            v[k] = sum * 1.7320508f;
        }
        p[i] = (T)(2.7f * v[0] + noise * v[1]);
    }
}

template <typename F> static double median_ms(F run) {
    cudaEvent_t a, b;
    float t[SAMPLES];
    check(cudaEventCreate(&a));
    check(cudaEventCreate(&b));
    run();
    for (float &ms : t) {
        check(cudaEventRecord(a));
        run();
        check(cudaEventRecord(b));
        check(cudaEventSynchronize(b));
        check(cudaEventElapsedTime(&ms, a, b));
    }
    std::sort(t, t + SAMPLES);
    return t[SAMPLES / 2];
}

template <typename T>
static void head(const char *name, unsigned k, unsigned draws,
                 void (*report)(const char *, double, double)) {
    T *l = device<T>((size_t)ROWS * COLS);
    fill<<<4096, 256>>>(l, (size_t)ROWS * COLS, 0.0f);
    struct cuda_head_call c = {};
    c.rows = ROWS;
    c.ld = c.cols = COLS;
    c.top_k = k;
    c.min_k = 10;
    c.draws = draws;
    c.tail_mass = 1e-3;
    uint32_t *labels = device<uint32_t>(ROWS);
    check(cudaMemset(labels, 0, ROWS * 4));
    c.labels = labels;
    c.lse = device<double>(ROWS);
    c.entropy = device<float>(ROWS);
    c.tail_mass_out = device<float>(ROWS);
    c.label_logit = device<float>(ROWS);
    c.count = device<uint32_t>(ROWS);
    c.ids = device<uint32_t>((size_t)ROWS * k);
    c.logit = device<float>((size_t)ROWS * k);
    c.draw_ids = device<uint32_t>((size_t)ROWS * draws + 1);
    c.draw_logit = device<float>((size_t)ROWS * draws + 1);
    report(name, median_ms([&] { check(cuda_head_launch(&c, l, (cudaStream_t)0)); }),
           (double)ROWS * COLS * sizeof(T));
    check(cudaFree(l));
}

template <typename T>
static void pair(const char *name, void (*report)(const char *, double, double)) {
    T *p = device<T>((size_t)ROWS * COLS), *q = device<T>((size_t)ROWS * COLS);
    fill<<<4096, 256>>>(p, (size_t)ROWS * COLS, 0.0f);
    fill<<<4096, 256>>>(q, (size_t)ROWS * COLS, 0.15f);
    struct cuda_pair_call c = {ROWS, COLS, COLS, COLS, 0.95, device<kld_pair_row>(ROWS)};
    report(name, median_ms([&] { check(cuda_pair_launch(&c, p, q, (cudaStream_t)0)); }),
           2.0 * ROWS * COLS * sizeof(T));
    check(cudaFree(p));
    check(cudaFree(q));
}

static void copy(void (*report)(const char *, double, double)) {
    size_t n = (size_t)1 << 31;
    char *a = device<char>(n), *b = device<char>(n);
    report("copy", median_ms([&] { check(cudaMemcpyAsync(a, b, n, cudaMemcpyDeviceToDevice)); }),
           2.0 * (double)n);
    check(cudaFree(a));
    check(cudaFree(b));
}

extern "C" void bench_kernels(void (*report)(const char *, double, double)) {
    copy(report);
    head<__nv_bfloat16>("head_stats_bf16_k256", 256, 16, report);
    head<__nv_bfloat16>("head_stats_bf16_k256_no_draws", 256, 0, report);
    head<__nv_bfloat16>("head_stats_bf16_k16_no_draws", 16, 0, report);
    head<float>("head_stats_f32_k256", 256, 16, report);
    head<float>("head_stats_f32_k16_no_draws", 16, 0, report);
    pair<__nv_bfloat16>("pair_bf16", report);
    pair<float>("pair_f32", report);
}
