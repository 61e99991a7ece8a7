/* kld/base/version.h - version of the program.  Floor 0. */
#ifndef KLD_BASE_VERSION_H
#define KLD_BASE_VERSION_H

#include "kld/base/status.h"

KLD_EXTERN_C_BEGIN

const char *kld_version(void); /* "0.1.0" */
const char *kld_commit(void);  /* abbreviated commit of the build, or "unknown" */

KLD_EXTERN_C_END

#endif
