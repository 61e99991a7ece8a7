/* Joins model, suite and, for a candidate, the reference capture.  Everything that can be
 * refused is refused in prepare(), before the engine reads a weight. */
#include "kld/capture/capture.h"

#include "datasets/partition.h"
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/place.h"
#include "kld/capture/deliver.h"
#include "kld/capture/identity.h"
#include "kld/capture/inputs.h"
#include "kld/capture/routes.h"
#include "kld/store/capture.h"
#include "loaders/head.h"
#include "loaders/model.h"
#include "loaders/tokenizer.h"

#include <string.h>

kld_capture_options kld_capture_defaults(void) {
    kld_capture_options o = {
        .precision = KLD_PRECISION_BF16,
        .top_k = 256,
        .min_k = 10, /* so that top-10 overlap is exact */
        .tail_mass = 1e-3,
        .tail_samples = 16,
        .seed = 1,
    };
    return o;
}

typedef struct job {
    const kld_capture_options *opt;
    const kld_backend *backend;
    char *dir;       /* resolved model directory */
    char *state_dir; /* OUTPUT.partial.d */
    kld_model *model;
    kld_suite suite;
    kld_capture *ref; /* NULL for a reference */
    kld_seq *seqs;    /* [suite.n_windows] */
    kld_capture_info info;
    kld_engine_options engine;
    kld_capture_writer *writer;
    bool resumed; /* the partial holds what an earlier run did */
    kld_deliver *deliver;
    kld_route_book *book; /* NULL when routes are neither kept nor replayed */
} job;

static void job_free(job *j) {
    kld_routes_close(j->book);
    kld_capture_close(j->ref);
    kld_capture_info_free(&j->info);
    kld_suite_free(&j->suite);
    kld_model_free(j->model);
    kld_free(j->seqs);
    kld_free(j->dir);
    kld_free(j->state_dir);
}

/* ---- what the engine calls ------------------------------------------------------------ */

static kld_status on_gather(void *ctx, size_t i, kld_gather *out, kld_err *err) {
    return kld_deliver_gather(((job *)ctx)->deliver, i, out, err);
}

static kld_status on_records(void *ctx, size_t i, kld_records *r, kld_err *err) {
    job *j = ctx;
    if (j->info.routes.kept) TRY(kld_routes_window(j->book, i, r, err));
    return kld_deliver_records(j->deliver, i, r, err);
}

static kld_sink sink_of(job *j) {
    return (kld_sink){.ctx = j, .gather = j->ref ? on_gather : NULL, .records = on_records};
}

/* ---- preparation ---------------------------------------------------------------------- */

static kld_status mismatch(kld_err *err, const char *path, const char *what, const kld_digest *a,
                           const kld_digest *b, const char *advice) {
    char ha[KLD_SHA256_HEX], hb[KLD_SHA256_HEX];
    return kld_fail(err, KLD_E_INPUT, "%s: the %s differs: %.12s here, %.12s expected; %s", path,
                    what, kld_digest_hex(a, ha), kld_digest_hex(b, hb), advice);
}

/* Columns of the softmax: the tokenizer's real size, not the padded number of rows of the
 * head, so that padding takes no probability. */
static kld_status choose_vocab(job *j, kld_err *err) {
    size_t rows = j->model->config.vocab, vocab = j->suite.vocab ? j->suite.vocab : rows;
    kld_digest digest = j->suite.tokenizer;
    char *path = NULL;
    TRY(kld_path_join(&path, j->dir, "tokenizer.json", err));
    kld_tokenizer *t = NULL;
    kld_status st = KLD_OK;
    if (kld_path_exists(path)) {
        TRY_TO(done, kld_tokenizer_open(&t, path, err));
        digest = kld_tokenizer_digest(t);
        vocab = kld_tokenizer_size(t);
        if (kld_zero_digest(&j->suite.tokenizer))
            kld_warn("%s does not say which tokenizer made its ids; they are taken as this "
                     "model's",
                     j->opt->suite);
        else if (!kld_same_digest(&digest, &j->suite.tokenizer))
            TRY_TO(done, mismatch(err, path, "tokenizer", &digest, &j->suite.tokenizer,
                                  "the suite was built with another one; build a suite with this "
                                  "model's tokenizer"));
    } else if (j->suite.vocab) {
        kld_note("%s has no tokenizer.json; the suite's tokenizer (%zu ids) is taken as its own",
                 j->dir, j->suite.vocab);
    } else {
        kld_warn("neither the checkpoint nor the suite says which ids are real; all %zu rows of "
                 "the head count",
                 rows);
    }
    st = KLD_OK;
    if (vocab > rows)
        st = kld_fail(err, KLD_E_INPUT,
                      "%s: the tokenizer has %zu ids but the head only %zu rows; the two do not "
                      "belong together",
                      path, vocab, rows);
    else if (vocab < rows)
        kld_note("%zu padding columns of the head (ids %zu..%zu) are left out of the softmax",
                 rows - vocab, vocab, rows - 1);
    j->info.vocab = vocab;
    j->info.vocab_rows = rows;
    j->info.tokenizer = digest;
done:
    kld_tokenizer_free(t);
    kld_free(path);
    return st;
}

static kld_status open_reference(job *j, kld_err *err) {
    if (!j->opt->ref) return KLD_OK;
    TRY(kld_capture_open(&j->ref, j->opt->ref, err));
    const kld_capture_info *r = kld_capture_header(j->ref);
    const char *path = j->opt->ref;
    if (r->has_reference)
        return kld_fail(err, KLD_E_INPUT,
                        "%s was itself captured against a reference (%s); --ref needs a capture "
                        "made without --ref",
                        path, r->reference_name);
    if (!kld_same_digest(&r->suite, &j->suite.digest))
        return mismatch(err, path, "suite", &r->suite, &j->suite.digest,
                        "capture both models on the same suite");
    TRY(kld_where(err, kld_identity_partition(r, &j->suite, err), "%s", path));
    if (!kld_same_digest(&r->tokenizer, &j->info.tokenizer))
        return mismatch(err, path, "tokenizer", &r->tokenizer, &j->info.tokenizer,
                        "the two models do not share a tokenizer");
    if (r->vocab != j->info.vocab)
        return kld_fail(err, KLD_E_INPUT,
                        "%s: its softmax runs over %llu ids, this model's over %llu", path,
                        (unsigned long long)r->vocab, (unsigned long long)j->info.vocab);
    j->info.has_reference = true;
    j->info.reference = kld_capture_digest(j->ref);
    j->info.ref_top_k = r->top_k;
    j->info.ref_tail_samples = r->tail_samples;
    return kld_strdup(&j->info.reference_name, r->name, err);
}

/* What the header says of routes; the capture to replay is read here. */
static kld_status open_routes(job *j, kld_err *err) {
    const kld_capture_options *o = j->opt;
    const kld_router *r = &j->model->config.router;
    kld_route_info *i = &j->info.routes;
    if (o->replay)
        return kld_routes_load(&j->book, j->model, &j->suite, o->replay, o->ids_only, i, err);
    if (!o->keep_routes) return KLD_OK;
    *i = (kld_route_info){.kept = true, .top_k = r->top_k, .experts = r->experts};
    i->layers = kld_model_expert_layers(j->model, j->model->config.layers);
    if (i->layers) return KLD_OK;
    return kld_fail(err, KLD_E_UNSUPPORTED, "%s: --routes: a %s model without experts has none",
                    j->dir, j->model->family);
}

/* What a floor changes of the arithmetic of the reference that it repeats. */
static kld_status choose_arithmetic(job *j, kld_err *err) {
    const kld_capture_options *o = j->opt;
    j->engine.precision = o->precision;
    if (o->floor == KLD_FLOOR_NONE) return KLD_OK;
    if (!j->ref)
        return kld_fail(err, KLD_E_USAGE,
                        "--floor measures a reference again: name its capture with --ref");
    const kld_capture_info *r = kld_capture_header(j->ref);
    if (!kld_same_digest(&r->model, &j->model->ckpt.digest))
        return mismatch(err, o->ref, "checkpoint", &r->model, &j->model->ckpt.digest,
                        "--floor repeats the capture of the reference itself");
    const char *was = json_string_value(json_object_get(r->engine, "precision"));
    bool chunk = o->floor == KLD_FLOOR_CHUNK, bf16 = was && !strcmp(was, "bf16");
    j->engine.precision = bf16 == chunk ? KLD_PRECISION_BF16 : KLD_PRECISION_FP32;
    if (chunk) j->engine.chunk = KLD_CHUNK / 2;
    return kld_strdup(&j->info.floor, chunk ? "chunk" : "precision", err);
}

/* What an exact capture says of its hidden states. */
static kld_status choose_hidden(job *j, kld_err *err) {
    const kld_config *c = &j->model->config;
    kld_hidden_info *h = &j->info.hidden;
    if (!j->opt->exact) return KLD_OK;
    *h = (kld_hidden_info){.cols = c->hidden,
                           .bytes = j->engine.precision == KLD_PRECISION_BF16 ? 2 : 4,
                           .logit_cap = c->logit_cap};
    size_t most = KLD_CAPTURE_MAX_HIDDEN / (c->hidden * 4);
    for (size_t i = 0; i < j->suite.n_windows; i++)
        if (kld_window_scored(&j->suite.windows[i]) > most)
            return kld_fail(err, KLD_E_INPUT,
                            "%s: window %zu has %zu scored positions; hidden states of %zu values "
                            "are kept for at most %zu a window",
                            j->opt->suite, i, kld_window_scored(&j->suite.windows[i]), c->hidden,
                            most);
    if (j->opt->keep_head) TRY(kld_where(err, kld_head_keepable(j->model, err), "--keep-head"));
    return kld_head_digest(j->model, &h->head, err);
}

static kld_status choose_label(job *j, kld_err *err) {
    const char *label = j->opt->label ? j->opt->label : j->model->label;
    if (!j->opt->label && j->opt->floor == KLD_FLOOR_CHUNK) label = "floor: spans";
    else if (!j->opt->label && j->opt->floor)
        label = j->engine.precision == KLD_PRECISION_BF16 ? "floor: BF16" : "floor: FP32";
    return kld_strdup(&j->info.label, label, err);
}

static kld_status fill_info(job *j, kld_err *err) {
    const kld_capture_options *o = j->opt;
    kld_capture_info *i = &j->info;
    TRY(kld_identity_name(&i->name, o->name ? o->name : o->model, err));
    TRY(kld_strdup(&i->family, j->model->family, err));
    i->model = j->model->ckpt.digest;
    if (o->hash_full) TRY(kld_checkpoint_hash_full(&j->model->ckpt, &i->model_full, err));
    i->suite = j->suite.digest;
    TRY(kld_strdup(&i->partition, j->suite.partition, err));
    i->windows = j->suite.n_windows;
    i->positions = j->suite.positions;
    i->top_k = o->top_k;
    i->min_k = o->min_k;
    i->tail_mass = o->tail_mass;
    i->tail_samples = o->tail_samples_set || !o->ref ? o->tail_samples : 0;
    i->seed = o->seed;
    TRY(choose_arithmetic(j, err));
    TRY(choose_label(j, err));
    TRY(choose_hidden(j, err));
    TRY(kld_path_real(&i->checkpoint, j->dir, err));
    j->engine = (kld_engine_options){
        .precision = j->engine.precision,
        .chunk = j->engine.chunk,
        .hidden = o->exact,
        .activations = o->activations,
        .fused = o->fused,
        .vocab = i->vocab,
        .top_k = i->top_k,
        .min_k = i->min_k,
        .tail_mass = i->tail_mass,
        .tail_samples = i->tail_samples,
        .seed = i->seed,
        .ref_top_k = i->ref_top_k,
        .ref_tail_samples = i->ref_tail_samples,
        .devices = o->where ? o->where->device : NULL,
        .n_devices = o->where ? o->where->n : 0,
        .device_memory = o->device_memory,
        .memory = o->memory,
        .state_dir = j->state_dir,
        .resume = o->resume,
    };
    TRY(kld_engine_identity(j->backend, &j->engine, &i->engine, err));
    TRY(kld_identity_quant(j->model, &i->quant, err));
    const kld_checkpoint *c = &j->model->ckpt;
    TRY(open_routes(j, err));
    TRY(kld_identity_run(i, c->shards, c->n_shards, &j->engine.run_id, err));
    if (i->routes.kept)
        TRY(kld_routes_keep(&j->book, j->model, &j->suite, j->state_dir, &j->engine.run_id, err));
    if (j->book) j->engine.routes = kld_routes_io(j->book);
    return kld_identity_place(&i->time, &i->host, err);
}

kld_status kld_capture_check(const kld_capture_options *o, kld_err *err) {
    if (o->top_k < 1 || o->top_k > 4096)
        return kld_fail(err, KLD_E_USAGE, "--top-k %llu: 1 to 4096 is accepted",
                        (unsigned long long)o->top_k);
    if (o->min_k > o->top_k)
        return kld_fail(err, KLD_E_USAGE, "--min-k %llu is above --top-k %llu",
                        (unsigned long long)o->min_k, (unsigned long long)o->top_k);
    if (o->tail_samples > 256)
        return kld_fail(err, KLD_E_USAGE, "--tail-samples %llu: 0 to 256 is accepted",
                        (unsigned long long)o->tail_samples);
    if (!(o->tail_mass >= 0 && o->tail_mass < 1))
        return kld_fail(err, KLD_E_USAGE, "--tail-mass must be at least 0 and below 1");
    return KLD_OK;
}

static kld_status check_output(const job *j, kld_err *err) {
    const char *path = j->opt->output;
    kld_buf partial = {0};
    TRY(kld_output_not_input(path, j->opt->suite, err));
    TRY(kld_output_not_input(path, j->opt->ref, err));
    TRY(kld_output_not_input(path, j->opt->replay, err));
    if (kld_path_is_dir(path))
        return kld_fail(err, KLD_E_INPUT, "%s: is a directory; a file name is needed", path);
    if (kld_path_exists(path) && !j->opt->force)
        return kld_fail(err, KLD_E_INPUT, "%s exists; use --force to replace it", path);
    TRY(kld_buf_addf(&partial, err, "%s.partial", path));
    bool has = kld_path_exists((char *)partial.data) || kld_path_is_dir(j->state_dir);
    kld_buf_free(&partial);
    if (has && !j->opt->resume && !j->opt->force)
        return kld_fail(err, KLD_E_INPUT,
                        "%s.partial is left from a run that did not finish; use --resume to "
                        "continue it or --force to start anew",
                        path);
    return KLD_OK;
}

/* The partition that decides is never read by the way. */
static kld_status load_suite(job *j, kld_err *err) {
    const char *path = j->opt->suite;
    size_t left_out;
    TRY(kld_suite_load(&j->suite, path, err));
    TRY(kld_where(err, kld_suite_select(&j->suite, j->opt->partition, &left_out, err), "%s", path));
    if (left_out && !j->opt->partition)
        kld_note("%zu of %zu windows are of partition '" KLD_QUALIFICATION
                 "' and are left out; --partition " KLD_QUALIFICATION " or all reads them",
                 left_out, left_out + j->suite.n_windows);
    return KLD_OK;
}

static kld_status prepare(job *j, kld_err *err) {
    const kld_capture_options *o = j->opt;
    kld_buf state = {0};
    TRY(kld_capture_check(o, err));
    TRY(kld_buf_addf(&state, err, "%s.partial.d", o->output));
    j->state_dir = (char *)state.data;
    TRY(check_output(j, err));
    TRY(load_suite(j, err));
    TRY(kld_hub_resolve(o->model, &j->dir, err));
    TRY(kld_model_open(&j->model, j->dir, err));
    TRY(kld_checkpoint_not_output(&j->model->ckpt, o->output, err));
    if (o->activations == KLD_ACTIVATIONS_AS_DECLARED)
        TRY(kld_inputs_resolve(j->model, j->dir, o->fused, err));
    for (size_t i = 0; i < j->model->n_warnings; i++) kld_warn("%s", j->model->warnings[i]);
    TRY(choose_vocab(j, err));
    TRY(open_reference(j, err));
    TRY(fill_info(j, err));
    TRY(NEW_ARRAY(&j->seqs, j->suite.n_windows, err));
    for (size_t i = 0; i < j->suite.n_windows; i++) {
        const kld_window *w = &j->suite.windows[i];
        j->seqs[i] = (kld_seq){.ids = w->ids, .n = w->n, .score_from = w->score_from};
        for (size_t t = 0; t < w->n; t++)
            if (w->ids[t] >= j->info.vocab)
                return kld_fail(err, KLD_E_INPUT,
                                "%s: window %zu holds id %u, but this model's tokenizer has only "
                                "%llu ids",
                                o->suite, i, w->ids[t], (unsigned long long)j->info.vocab);
    }
    const kld_sink sink = sink_of(j);
    return kld_engine_check(j->model, j->backend, j->seqs, j->suite.n_windows, &j->engine, &sink,
                            err);
}

/* ---- run ------------------------------------------------------------------------------ */

static kld_status open_writer(job *j, kld_err *err) {
    const char *path = j->opt->output;
    kld_buf partial = {0};
    TRY(kld_buf_addf(&partial, err, "%s.partial", path));
    bool has = kld_path_exists((char *)partial.data);
    kld_buf_free(&partial);
    if (j->opt->resume && has) {
        size_t done = 0;
        TRY(kld_capture_resume(&j->writer, path, &j->info, &done, err));
        j->engine.skip_windows = done;
        j->resumed = true;
        kld_note("resuming: %zu of %zu windows are in %s.partial", done, j->suite.n_windows, path);
        return KLD_OK;
    }
    if (j->opt->resume) kld_note("nothing to resume: %s.partial does not exist", path);
    j->engine.resume = false;
    /* The writer first: it is refused while another run has the partial, and the state is that
     * run's then. */
    TRY(kld_capture_create(&j->writer, path, &j->info, err));
    return kld_remove_tree(j->state_dir, err);
}

static bool resumable(kld_status st) {
    return st == KLD_E_INTERRUPTED || st == KLD_E_IO || st == KLD_E_NOMEM || st == KLD_E_DEVICE;
}

static kld_status run_engine(job *j, kld_capture_summary *out, kld_err *err) {
    const kld_sink sink = sink_of(j);
    size_t n = j->suite.n_windows;
    if (j->engine.skip_windows == n) return KLD_OK;
    TRY(kld_deliver_open(&j->deliver, j->writer, j->ref, &j->suite, j->engine.skip_windows, err));
    kld_status st =
        kld_engine_run(j->model, j->backend, j->seqs, n, &j->engine, &sink, &out->engine, err);
    /* What was computed before a failure is kept with the rest. */
    kld_status flushed = kld_deliver_flush(j->deliver, st == KLD_OK ? err : NULL);
    kld_deliver_close(j->deliver);
    return st == KLD_OK ? flushed : st;
}

/* The head beside the capture, for whoever compares it without the checkpoint. */
static kld_status keep_head(const job *j, kld_err *err) {
    char *dir, *path;
    TRY(kld_path_dir(&dir, j->opt->output, err));
    kld_status st = kld_head_save(j->model, &j->info.hidden.head, dir, &path, err);
    kld_free(dir);
    if (st != KLD_OK) return st;
    kld_note("the head is in %s", path);
    kld_free(path);
    return KLD_OK;
}

/* The engine's state goes before the rename, so that no moment leaves it beside a finished
 * capture; once every window is on the disk nothing needs it. */
static kld_status finish(job *j, kld_capture_summary *out, kld_err *err) {
    TRY(kld_capture_sync(j->writer, err));
    TRY(kld_remove_tree(j->state_dir, err));
    TRY(kld_capture_finish(j->writer, err));
    j->writer = NULL;
    kld_capture *c;
    if (j->opt->keep_head) TRY(keep_head(j, err));
    TRY(kld_capture_open(&c, j->opt->output, err));
    out->windows = j->info.windows;
    out->positions = j->info.positions;
    out->bytes = kld_capture_bytes(c);
    out->digest = kld_capture_digest(c);
    kld_capture_close(c);
    return KLD_OK;
}

kld_status kld_capture_run(const kld_capture_options *opt, kld_capture_summary *out, kld_err *err) {
    job j = {.opt = opt, .backend = opt->where ? opt->where->backend : kld_backend_cpu()};
    memset(out, 0, sizeof *out);
    kld_status st;
    TRY_TO(done, prepare(&j, err));
    st = open_writer(&j, err);
    if (st == KLD_OK) st = run_engine(&j, out, err);
    kld_progress_end();
    if (st == KLD_OK) st = finish(&j, out, err);
    if (st != KLD_OK && j.writer && (resumable(st) || j.resumed)) {
        kld_capture_leave(j.writer);
        kld_note("what was done is kept in %s.partial%s", opt->output,
                 resumable(st) ? "; run the same command with --resume" : "");
    } else if (st != KLD_OK && j.writer) {
        kld_capture_abort(j.writer);
        kld_err ignored;
        (void)!kld_remove_tree(j.state_dir, &ignored);
    }
done:
    job_free(&j);
    return st;
}
