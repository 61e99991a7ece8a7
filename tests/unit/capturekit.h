/* tests/unit/capturekit.h - made-up records and captures. */
#ifndef KLD_TESTS_CAPTUREKIT_H
#define KLD_TESTS_CAPTUREKIT_H
#include "kld/store/capture.h"

/* Uniform in (0, 1) and standard normal, a function of key and index. */
double unit(uint64_t key, uint64_t i);
double gauss(uint64_t key, uint64_t i);

/* Records of n rows over a small vocabulary, from all of its log-probabilities: Zipf-like with
 * noise; `shift` makes a candidate of it.  ref = records to report at, or NULL. */
void make_records(kld_records *r, size_t n, size_t vocab, size_t k, size_t m, uint64_t seed,
                  double temper, double shift, const kld_records *ref);

/* The same at the default settings (256 ids, 16 draws) for a large vocabulary, fast.  A
 * candidate is made with the seed of its reference. */
void pool_records(kld_records *r, size_t n, size_t vocab, uint64_t seed, double temper,
                  double shift, const kld_records *ref);

/* Routes of all tokens for records of any kind, and what a header says of them. */
void make_routes(kld_records *r, size_t tokens, const kld_route_info *info, uint64_t seed);
kld_route_info make_route_info(kld_route_mode mode, unsigned char source);

kld_capture_info make_info(size_t windows, size_t rows, size_t vocab, size_t k, size_t m);
kld_window_meta make_meta(size_t i, size_t rows);

/* Windows from..windows-1 into w; a candidate of ref unless it is NULL. */
kld_status write_from(kld_capture_writer *w, size_t from, size_t windows, size_t rows, size_t vocab,
                      size_t k, double temper, kld_capture *ref, kld_err *e);

/* A whole capture; a candidate when ref_path is given. */
void write_capture(const char *path, size_t windows, size_t rows, size_t vocab, size_t k,
                   double temper, const char *ref_path);

/* Open, verify, and read every window. */
kld_status read_all(const char *path, kld_capture *ref, kld_err *e);

#endif
