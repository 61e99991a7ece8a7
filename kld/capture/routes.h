/* kld/capture/routes.h - routes between the engine, which goes layer by layer, and captures, which
 * go window by window.  Floor 3.
 *
 * Kept routes lie in a file a layer, `routes-0012.bin` in the directory of the run's state, so that
 * a resumed run has those of the layers that it does not compute again.  Little-endian:
 *     "kldroute"  u32 version = 1  u32 layer  u64 rows  u64 k  run_id[32]
 *     for each window: u16 id[n][k]  f32 weight[n][k]  f32 margin[n]
 *     sha256[32] of everything before
 * A file is whole or absent.  Replayed routes are read from their capture once, into a file without
 * a name. */
#ifndef KLD_CAPTURE_ROUTES_H
#define KLD_CAPTURE_ROUTES_H
#include "datasets/suite.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "kld/store/capture.h"
#include "loaders/model.h"
#include "logits/engine.h"
#include <stddef.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_route_book kld_route_book;

/* A book for the routes of this run; dir is made when the first is written.  suite, dir: borrowed.
 * KLD_E_NOMEM; KLD_E_UNSUPPORTED for a model without experts. */
KLD_NODISCARD kld_status kld_routes_keep(kld_route_book **out, const kld_model *m,
                                         const kld_suite *suite, const char *dir,
                                         const kld_digest *run_id, kld_err *err);

/* The routes of a capture, for a model and a suite.  *info: what goes into the header of the new
 * capture.  ids_only: weights are left to the model's own routers.
 * KLD_E_INPUT  the capture keeps none, was itself replayed, is of another suite, or its layers,
 *              experts or experts a token are not the model's; or it is damaged. */
KLD_NODISCARD kld_status kld_routes_load(kld_route_book **out, const kld_model *m,
                                         const kld_suite *suite, const char *path, bool ids_only,
                                         kld_route_info *info, kld_err *err);

/* For kld_engine_options.routes; valid until close.  Its first `take` fails with KLD_E_INPUT when a
 * file of an earlier run, of a layer before, is missing or damaged. */
const kld_route_io *kld_routes_io(const kld_route_book *b);

/* Once every layer was taken: the routes of window w into *r (allocated there).
 * KLD_E_INPUT  a file of an earlier run is missing or damaged. */
KLD_NODISCARD kld_status kld_routes_window(kld_route_book *b, size_t w, kld_records *r,
                                           kld_err *err);
void kld_routes_close(kld_route_book *b); /* NULL is fine */

KLD_EXTERN_C_END
#endif
