#include "kld/base/version.h"

#ifndef KLD_COMMIT
#define KLD_COMMIT "unknown"
#endif

const char *kld_version(void) { return "0.1.0"; }

const char *kld_commit(void) { return KLD_COMMIT; }
