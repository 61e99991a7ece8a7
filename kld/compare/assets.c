#include "kld/compare/assets.h"

/* Debian's libjs-chart.js; the Makefile says where it is. */
#ifndef KLD_CHART_JS
#define KLD_CHART_JS "/usr/share/javascript/chart.js/chart.min.js"
#endif

/* The assembler reads the files: no copy of them in C, nothing to generate.  The preprocessor does
 * not see them, so the Makefile names them as what this object depends on. */
#define BEGIN(name)                                                                                \
    ".section .rodata\n.global kld_asset_" name "\n.global kld_asset_" name                        \
    "_end\nkld_asset_" name ":\n"
#define FILE(path) ".incbin \"" path "\"\n"
#define END(name) "kld_asset_" name "_end:\n.byte 0\n.previous\n"
#define DIR "kld/compare/report/"

__asm__(BEGIN("page") FILE(DIR "page.html") END("page"));
__asm__(BEGIN("style") FILE(DIR "report.css") END("style"));
__asm__(BEGIN("chart") FILE(KLD_CHART_JS) END("chart"));
__asm__(BEGIN("script") FILE(DIR "dom.js") FILE(DIR "charts.js") FILE(DIR "report.js")
            FILE(DIR "sections.js") END("script"));
