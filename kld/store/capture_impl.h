/* kld/store/capture_impl.h - an open capture.  Floor 1; private to capture_read.c and
 * capture_sign.c. */
#ifndef KLD_STORE_CAPTURE_IMPL_H
#define KLD_STORE_CAPTURE_IMPL_H
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/store/capture.h"
#include "kld/store/layout.h"

struct kld_capture {
    kld_file file;
    kld_capture_info info;
    struct layout layout; /* its bare name would be another one in C++ */
    kld_digest digest;
    kld_window_meta *meta; /* [windows] */
    kld_arena arena;       /* strings of meta */
};

#endif
