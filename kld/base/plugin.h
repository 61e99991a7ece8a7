/* kld/base/plugin.h - code that is loaded when it is asked for.  Floor 0. */
#ifndef KLD_BASE_PLUGIN_H
#define KLD_BASE_PLUGIN_H
#include "kld/base/status.h"

KLD_EXTERN_C_BEGIN

/* Load the shared object `name` from the program's own directory, or from ../lib/kld as seen from
 * there, and find `symbol` in it.  It stays loaded until the program ends.
 * KLD_E_UNSUPPORTED  it is in neither place
 * KLD_E_DEVICE       it cannot be loaded; the message has the loader's reason (a missing library)
 * KLD_E_INTERNAL     it lacks the symbol */
KLD_NODISCARD kld_status kld_plugin_open(const char *name, const char *symbol, void (**out)(void),
                                         kld_err *err);

KLD_EXTERN_C_END
#endif
