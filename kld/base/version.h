/* kld/base/version.h - version of the program.  Floor 0; read by make too. */
#ifndef KLD_BASE_VERSION_H
#define KLD_BASE_VERSION_H
#define KLD_VERSION "0.1.0"
#ifndef KLD_COMMIT
#define KLD_COMMIT "unknown"
#endif
#endif
