/* tests/bench/kernels.h - kernels timed by themselves, with CUDA events. */
#ifndef TESTS_BENCH_KERNELS_H
#define TESTS_BENCH_KERNELS_H
#ifdef __cplusplus
extern "C" {
#endif
/* Calls report(name, milliseconds, bytes that must move) for every kernel. */
void bench_kernels(void (*report)(const char *name, double ms, double bytes));
#ifdef __cplusplus
}
#endif
#endif
