/* kld/nightly/prometheus.h - a run for the text-file collector of Prometheus' node exporter.  Floor
 * 4; private to kld/nightly. */
#ifndef KLD_NIGHTLY_PROMETHEUS_H
#define KLD_NIGHTLY_PROMETHEUS_H
#include "kld/base/buf.h"
#include "kld/base/json.h"
#include "kld/base/status.h"

/* Append gauges of the summary of kld_nightly_run; docs/nightly.md lists them.  Values that are not
 * there have no line.  Label values are escaped.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status nightly_prometheus(const json_t *summary, kld_buf *out, kld_err *err);

#endif
