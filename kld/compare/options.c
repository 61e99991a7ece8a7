#include "kld/compare/options.h"

#include <math.h>

kld_compare_options kld_compare_defaults(void) {
    return (kld_compare_options){.top_p = 0.95,
                                 .overlap_k = 10,
                                 .resamples = 10000,
                                 .seed = 1,
                                 .margin = 0.10,
                                 .device = "auto"};
}

kld_status kld_compare_check(const kld_compare_options *o, size_t n_cands, kld_err *err) {
    if (n_cands == 0 || n_cands > KLD_MAX_CANDIDATES)
        return kld_fail(err, KLD_E_USAGE, "%zu candidates; 1 to %d are accepted", n_cands,
                        KLD_MAX_CANDIDATES);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return kld_fail(err, KLD_E_USAGE, "top-p is %g; it must be in (0, 1]", o->top_p);
    if (o->overlap_k == 0) return kld_fail(err, KLD_E_USAGE, "overlap-k must be at least 1");
    if (o->resamples < 100 || o->resamples > 1000000)
        return kld_fail(err, KLD_E_USAGE, "%zu resamples; 100 to 1000000 are accepted",
                        o->resamples);
    if (o->seed > INT64_MAX) return kld_fail(err, KLD_E_USAGE, "the seed must be below 2^63");
    if (!(o->margin > 0 && isfinite(o->margin)))
        return kld_fail(err, KLD_E_USAGE, "margin is %g; it must be above 0", o->margin);
    if (!(o->margin_abs >= 0 && isfinite(o->margin_abs)))
        return kld_fail(err, KLD_E_USAGE, "margin-abs is %g nats; it must be above 0",
                        o->margin_abs);
    if (o->head_shared && o->exact_never)
        return kld_fail(err, KLD_E_USAGE,
                        "a shared head is run over hidden states: --head shared "
                        "and --exact never exclude each other");
    return KLD_OK;
}
