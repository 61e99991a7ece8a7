/* kld/compare/assets.h - the files of kld/compare/report/ and Chart.js, as bytes of the program.
 * Floor 3; private to kld/compare. */
#ifndef KLD_COMPARE_ASSETS_H
#define KLD_COMPARE_ASSETS_H

/* From the first byte up to, not including, the end. */
extern const char kld_asset_page[], kld_asset_page_end[];     /* page.html */
extern const char kld_asset_style[], kld_asset_style_end[];   /* report.css */
extern const char kld_asset_chart[], kld_asset_chart_end[];   /* chart.min.js of Chart.js 3 */
extern const char kld_asset_script[], kld_asset_script_end[]; /* our scripts, one after another */

#endif
