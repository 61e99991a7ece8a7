/* Opens, verifies and reads the input as a capture, and as a candidate of itself.  The
 * SHA-256 checks would stop nearly every mutation, so the input's own frames are also put
 * through the decoder directly. */
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/store/capture.h"
#include "kld/store/frame.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode_directly(const uint8_t *data, size_t size) {
    kld_err err;
    kld_capture_info info = {.vocab = 300,
                             .vocab_rows = 300,
                             .top_k = 64,
                             .tail_samples = 16,
                             .ref_top_k = 64,
                             .ref_tail_samples = 16};
    kld_buf text = {0};
    kld_records r, q;
    if (frame_inflate(data, size, 1 << 22, &text, &err) != KLD_OK) {
        /* Not a frame: take it as the content of one. */
        kld_buf_clear(&text);
        text.max = 1 << 22;
        if (kld_buf_add(&text, data, size < 1 << 20 ? size : 1 << 20, &err) != KLD_OK) return;
    }
    if (frame_records(&info, &text, NULL, &r, &err) == KLD_OK) {
        if (frame_records(&info, &text, &r, &q, &err) == KLD_OK) kld_records_free(&q);
        kld_records_free(&r);
    }
    kld_buf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    decode_directly(data, size);
    char path[] = "/tmp/kld-fuzz-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) return 0;
    bool written = write(fd, data, size) == (ssize_t)size;
    close(fd);
    kld_capture *c;
    kld_err err;
    if (written && kld_capture_open(&c, path, &err) == KLD_OK) {
        kld_status st = kld_capture_verify(c, &err);
        kld_window_meta meta;
        for (size_t i = 0; st == KLD_OK && i < kld_capture_header(c)->windows; i++)
            st = kld_capture_meta(c, i, &meta, &err);
        kld_capture_close(c);
    }
    unlink(path);
    return 0;
}
