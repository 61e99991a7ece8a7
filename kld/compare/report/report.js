/* The page: sections in the order in which they are asked for.  Fields that a result lacks are left
 * out with whatever shows them. */

const {result, history} = JSON.parse(doc.getElementById("data").textContent);
const cands = list(result.candidates);
const reference = result.reference;

/* "[2] NVFP4" where space is short; "nvfp4 (NVFP4)" where it is not. */
const labelled = new Set(cands.map((c) => c.label)).size === cands.length;
const short = (k) => {
  const c = cands[k],
        lead = replayed(c) ? (mode(c) === "replay-ids" ? "id-pinned" : c.routing.cell || "replay") + " " : "";
  return "[" + (k + 1) + "] " + lead + (labelled && c.label ? c.label : c.name);
};
const full = (c) => (c ? bdi(c.label && c.label !== c.name ? c.name + " (" + c.label + ")" : c.name) : "?");
/* In sentences, where several may have one name. */
const numbered = (k) => (cands[k] ? ["[" + (k + 1) + "] ", full(cands[k])] : "?");
const mode = (c) => at(c, "routing", "mode");
const replayed = (c) => mode(c) !== undefined && mode(c) !== "natural";
const routes = (c) => {
  if (!replayed(c)) return null;
  const r = c.routing;
  const whose = r.source === "reference" ? "the reference's routes" :
      r.source === "candidate"           ? "routes of [" + (r.source_candidate + 1) + "]" :
                                           "routes of another capture";
  return (r.cell ? r.cell + ", " : "") + (mode(c) === "replay-ids" ? "id-pinned to " : "") + whose;
};
const isSelf = (c) => c.capture === "the reference itself";
const kind = (d) => (d.exact ? "exact" : isNumber(d.mean) ? "estimate" : "bound only");

/* Candidates in the charts: checkboxes decide. */
let shown = cands.map((_, k) => k).filter((k) => !isSelf(cands[k]) && cands[k].valid !== false).slice(0, 8);
if (!shown.length) shown = cands.map((_, k) => k).slice(0, 8);
const chosen = () => shown;

const sections = [];
function section(id, title, ...children) {
  const kept = children.flat(9).filter((c) => c);
  if (!kept.length) return;
  sections.push([id, title]);
  doc.getElementById("main").append(
      el("section", {id, "aria-labelledby": id + "-h"}, el("h2", {id: id + "-h"}, title), kept));
}
const note = (...text) => el("p", {class: "note"}, text);

/* ---- verdict ------------------------------------------------------------------------------ */

function floorSentence() {
  const f = result.floor;
  if (!isObject(f))
    return "Noise floor: not measured. Capture the reference again with kld capture --floor and compare that, too: below what it scores against itself a difference means nothing.";
  const what = f.kind === "same capture" ?
      " (the reference's own capture: 0 by construction, which says nothing about noise)" :
      " (" + f.kind + " of the reference" + (f.verified ? ")" : ", not verified byte for byte)");
  return ["Noise floor: mean KL ", num(f.kl_mean), ", from [", f.candidate + 1, "]", what, "."];
}

function meanWords(kl) {
  if (kl.exact) return [el("strong", null, num(kl.mean)), " nats, exact at these positions"];
  if (isNumber(kl.mean)) return [el("strong", null, num(kl.mean)), " nats, estimated"];
  return [
    "at least ", el("strong", null, num(kl.lower_bound)), " nats (a guaranteed bound; there is no estimate)"
  ];
}

function gateWords(k) {
  return list(result.gates)
      .filter((g) => g.candidate === k)
      .map(
          (g) =>
              [" Gate ", code(g.metric + " ≤ " + +g.limit.toPrecision(6)), " ",
               el("span", {class: g.passed ? "good" : "bad"}, g.passed ? "passed" : "failed"),
               g.passed ? "" : [" at ", num(g.value)], "."]);
}

function candidateSentence(c, k) {
  if (c.valid === false)
    return el(
        "li", null, numbered(k), ": ", el("span", {class: "bad"}, "invalid"),
        ", none of its positions is finite.", gateWords(k));
  if (isSelf(c)) return null;
  const kl = c.kl, interval = isNumber(kl.mean) ? kl.ci95 : kl.lower_bound_ci95;
  const floor = at(result, "floor", "kl_mean"), isFloor = at(result, "floor", "candidate") === k;
  return el(
      "li", null, el("span", {class: "chip " + seriesName(k).slice(2)}), numbered(k),
      routes(c) && [" (", routes(c), ")"], ": mean KL ", meanWords(kl),
      isRange(interval) ? [" (95 % interval ", range(interval), ")"] : " (no interval)",
      !kl.exact && isNumber(kl.mean) && [", at least ", num(kl.lower_bound)],
      isFloor ? "; this is the noise floor" :
                isNumber(floor) && floor > 0 && kl.mean > 0 &&
              [
                ", ", num(kl.mean / floor, 3), " times the noise floor",
                c.resolved === false && el("span", {class: "bad"}, ", not resolved from it")
              ],
      ".", gateWords(k));
}

const VERDICT = {
  better: "good",
  worse: "bad"
};
function pairSentence(p) {
  const lower = p.difference < 0;
  /* Below twice the noise floor a difference means nothing, whatever its interval. */
  const word = p.resolved === false ? "unresolved" : p.verdict;
  const open = ["unresolved", "inconclusive", "unsupported"].includes(word);
  return el(
      "li", null, numbered(p.candidate), " is ",
      el("strong", {class: VERDICT[word]}, open ? "not told apart (" + word + ")" : word),
      open                                  ? " from " :
          word === "practically equivalent" ? " to " :
                                              " than ",
      numbered(p.baseline),
      isNumber(p.difference) &&
          [
            ": mean KL ", lower ? "lower" : "higher", " by ", num(Math.abs(p.difference)),
            isRange(p.difference_ci95) &&
                [
                  " (95 % ",
                  lower ? range([-p.difference_ci95[1], -p.difference_ci95[0]]) : range(p.difference_ci95),
                  ")"
                ],
            isNumber(p.ratio) && [", ", num(p.ratio, 3), " times as much"]
          ],
      isNumber(p.p_holm) && [", Holm p ", num(p.p_holm, 2)], ".");
}

/* Pairs with the reference itself or measured again, or of different routings, say nothing of checkpoints. */
function telling(p) {
  const a = cands[p.baseline], b = cands[p.candidate];
  if (isSelf(a) || isSelf(b) || at(a, "routing", "cell") === "BxB" || at(b, "routing", "cell") === "BxB")
    return false;
  if (a.floor || b.floor) return false;
  if (!replayed(a) && !replayed(b)) return true;
  return mode(a) === mode(b) && a.routing.source === b.routing.source;
}

/* A long list is cut where nobody reads on; the rest can be opened. */
function lines(items, upTo) {
  return [
    el("ul", null, items.slice(0, upTo)),
    items.length > upTo &&
        el("details", null, el("summary", null, "and " + (items.length - upTo) + " more"),
           el("ul", null, items.slice(upTo)))
  ];
}

function verdict() {
  const nats = at(result, "settings", "margin_abs");
  const pairs = list(result.pairs).filter(telling),
        failed = list(result.gates).filter((g) => !g.passed).length;
  section(
      "verdict", "Verdict",
      result.valid === false &&
          el("p", {class: "bad"}, "A candidate is invalid: none of its positions is finite."),
      result.arithmetic_mismatch &&
          el("p", {class: "bad"}, "Captures of different engine arithmetic were compared."),
      list(result.gates).length &&
          el("p", null,
             el("strong", {class: failed ? "bad" : "good"},
                failed ? failed + " of " + result.gates.length + " gates failed." : "All gates passed.")),
      at(result, "settings", "head") === "shared" &&
          el("p", null,
             "One head for both sides, the reference’s: what is told here is what the bodies differ by, not the heads."),
      el("p", null, floorSentence()), lines(cands.map(candidateSentence).filter((x) => x), 12),
      pairs.length && [
        el("h3", null,
           "How they compare (paired over source clusters, margin " +
               (isNumber(nats) ? nats + " nats)" :
                                 +(100 * at(result, "settings", "margin")).toPrecision(3) + " %)")),
        lines(pairs.map(pairSentence), 12)
      ]);
}

/* ---- candidates --------------------------------------------------------------------------- */

function candidateTable() {
  const quantile = (c, q) => at(c.kl.lower_bounds || c.kl, q);
  const columns = [
    {name: "candidate"}, {name: "mean KL"}, {name: "is", text: true}, {name: "bound"}, {name: "median"},
    {name: "p90", minor: true}, {name: "p99"}, {name: "p99.9"}, {name: "max"}, {name: "JS"},
    {name: "TV", minor: true}, {name: "reverse KL", minor: true}, {name: "top-1"},
    {name: "nucleus", minor: true}, {name: "acceptance"}, {name: "perplexity ×"},
    {name: "positions", minor: true}
  ];
  const cell = (v, r, show = num, ends = show) =>
      ({show: withRange(show(v), r, ends), sort: isNumber(v) ? v : null});
  const rows = cands
                   .map(
                       (c, k) =>
                           [{
                             show:
                                 [
                                   numbered(k),
                                   el("small", null,
                                      [c.activations, routes(c), c.status !== "ok" && c.status]
                                          .filter((x) => x)
                                          .join("; "))
                                 ],
                             sort: k
                           },
                            cell(c.kl.mean, c.kl.ci95),
                            isSelf(c)             ? "itself" :
                                c.valid === false ? "invalid" :
                                                    kind(c.kl),
                            cell(c.kl.lower_bound, c.kl.lower_bound_ci95),
                            ...["median", "p90", "p99", "p999"].map(
                                (q) => cell(quantile(c, q), at(c.kl, "quantiles_ci95", q))),
                            cell(quantile(c, "max")), cell(c.js.mean, c.js.ci95), cell(c.tv.mean, c.tv.ci95),
                            cell(c.reverse_kl.mean, c.reverse_kl.ci95),
                            cell(c.top1_agreement, c.top1_ci95, percent, percentOf),
                            cell(at(c, "top_p", "jaccard"), at(c, "top_p", "jaccard_ci95")),
                            cell(at(c, "acceptance", "sampling"), at(c, "acceptance", "sampling_ci95")),
                            cell(at(c, "perplexity", "ratio"), at(c, "perplexity", "ratio_ci95")),
                            {show: count(c.positions), sort: c.positions}]);
  section(
      "candidates", "Candidates",
      note(
          "KL(reference ‖ candidate) in nats; small print is the 95 % interval over source clusters. An estimate is unbiased, the bound is guaranteed, “exact” sums over the whole vocabulary. Headings sort the table."),
      table(columns, rows, {caption: "All candidates against " + reference.name, sortable: true}),
      exactTable());
}

/* What came of hidden states and heads. */
function exactTable() {
  if (!cands.some((c) => isObject(c.exact))) return null;
  const rows = cands.map((c, k) => [k, c.exact])
                   .filter(([, x]) => isObject(x))
                   .map(
                       ([k, x]) =>
                           [bdi(short(k)), x.head === "shared" ? "the reference’s" : "its own",
                            bdi(x.replayed_on || "–"), num(x.check_max, 2),
                            x.bodies_equal ? "equal" : "differ", num(x.head_only_kl)]);
  return [
    el("h3", null, "Exact comparisons: heads replayed over kept hidden states"),
    table(
        [
          {name: "candidate"}, {name: "head", text: true}, {name: "replayed on", text: true},
          {name: "recorded − replayed, at most"}, {name: "bodies", text: true}, {name: "KL of the head alone"}
        ],
        rows, {caption: "Over the whole vocabulary"})
  ];
}

function chooser() {
  if (cands.length < 2) return;
  const boxes = cands.map((c, k) => {
    const box = el("input", {type: "checkbox", checked: shown.includes(k)});
    box.addEventListener("change", () => {
      shown = cands.map((_, j) => j).filter((j) => (j === k ? box.checked : shown.includes(j)));
      drawAll();
    });
    return el("label", null, box, swatch(k), bdi(short(k)));
  });
  doc.getElementById("main").append(
      el("fieldset", null, el("legend", null, "Candidates in the charts below"), boxes));
}

/* ---- distribution and breakdowns ------------------------------------------------------------ */

function distribution() {
  const h = (k) => at(cands[k], "kl", "histogram");
  if (!cands.some((_, k) => h(k))) return;
  const bounds = () => chosen().some((k) => cands[k].kl.lower_bounds);
  const share = (k, b) => h(k).counts[b] / (cands[k].positions || 1);
  const edge = (k, b) => Math.log10(h(k).from) + b / h(k).bins_per_decade;
  /* From the first to the last bin that anyone has something in. */
  const span = () => {
    let lo = Infinity, hi = 0;
    for (const k of chosen())
      h(k).counts.forEach((n, b) => {
        if (n) {
          lo = Math.min(lo, b);
          hi = Math.max(hi, b);
        }
      });
    return lo > hi ? [0, 0] : [Math.max(0, lo - 1), Math.min(hi + 1, h(chosen()[0]).counts.length - 1)];
  };
  const power = (v) => "10" + [...String(Math.round(v))].map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d] || "⁻").join("");
  const bins = () => {
    const [lo, hi] = span();
    return Array.from({length: hi - lo + 1}, (_, i) => lo + i);
  };
  section("distribution", "Distribution of KL",
    note("Share of positions by their KL, on a logarithmic axis with ", String(at(h(0), "bins_per_decade")), " bins a decade.", bounds() ? " Where there is no estimate, of the bounds." : "", " Positions of a KL below 1e−9, 0 among them, are counted in the table only."),
    figure({
      label: () => "Distribution of KL over positions for " + chosen().map(short).join(", ") + "; medians " + chosen().map((k) => num(cands[k].kl.median)).join(", ") + ".",
      series: () => chosen().map((k, i) => ({
        ...look(k), k, label: short(k), stepped: "middle", pointRadius: (c) => (c.dataIndex % 6 === i % 6 && c.raw && c.raw.y > 0 ? 4 : 0),
        data: bins().map((b) => ({ x: edge(k, b) + 0.5 / h(k).bins_per_decade, y: 100 * share(k, b) })),
      })),
      scales: () => ({
        x: { type: "linear", title: "KL of a position, nats", ticks: { stepSize: 1, callback: (v) => (Number.isInteger(v) ? power(v) : "") } },
        y: { type: "linear", beginAtZero: true, title: "% of positions" },
      }),
      tooltip: { title: (i) => (i.length ? "KL about " + num(10 ** i[0].parsed.x, 2) : ""), label: (i) => i.dataset.label + ": " + num(i.parsed.y, 3) + " %" },
      data: () => table([{ name: "KL from" }, ...chosen().map((k) => ({ name: bdi(short(k)) }))],
        [["below 1e−9", ...chosen().map((k) => count(h(k).below))],
          ...bins().map((b) => [num(10 ** edge(chosen()[0], b), 3), ...chosen().map((k) => count(h(k).counts[b]))]),
          ["above 100", ...chosen().map((k) => count(h(k).above))]], { caption: "Positions by KL" }),
    }));
}

/* Mean, or the bound where there is none. */
const rowMean = (row) => (isNumber(at(row, "kl_mean")) ? row.kl_mean : at(row, "kl_lower_bound"));

function byPosition() {
  const rows = (k) => list(cands[k].by_position);
  const depth = list(at(cands[0], "by_depth")).filter((r) => r.positions > 0);
  const has = cands.some((_, k) => rows(k).length > 1);
  section(
      "position", "KL by position in the window",
      has &&
          figure({
            label: () => "Mean KL by position in the window for " + chosen().map(short).join(", ") + ".",
            series: () => chosen().map(
                (k, i) => ({
                  ...look(k),
                  k,
                  label: short(k),
                  pointRadius: (c) => (c.dataIndex % 6 === i % 6 ? 4 : 0),
                  data: rows(k).map((r) => ({x: (r.from + r.to) / 2, y: r.positions ? rowMean(r) : null})),
                })),
            scales: () => ({
              x: {type: "linear", min: 0, title: "position in the window", ticks: {maxRotation: 0}},
              y: {type: "linear", beginAtZero: true, title: "mean KL, nats"}
            }),
            tooltip: {
              title: (i) => (i.length ? "position " + Math.round(i[0].parsed.x) : ""),
              label: (i) => i.dataset.label + ": " + num(i.parsed.y)
            },
            data: () =>
                table(
                    [
                      {name: "from"}, {name: "to"}, {name: "positions"},
                      ...chosen().map((k) => ({name: bdi(short(k))}))
                    ],
                    rows(chosen()[0] || 0)
                        .map(
                            (r, i) =>
                                [count(r.from), count(r.to), count(r.positions),
                                 ...chosen().map((k) => num(rowMean(rows(k)[i])))]),
                    {caption: "Mean KL by position"}),
          }),
      depth.length && [
        el("h3", null, "By depth"), dots({
          what: "Mean KL by depth",
          head: "position",
          chosen,
          categories: depth.map((r) => r.from + (r.to === null ? " and on" : "–" + r.to)),
          positions: (i) => depth[i].positions,
          value: (k, i) => rowMean(same(cands[k].by_depth, "from", depth[i].from)),
          interval: (k, i) => at(same(cands[k].by_depth, "from", depth[i].from), "kl_ci95"),
        })
      ]);
}
const same = (rows, key, v) => list(rows).find((r) => r[key] === v);

function byStratum() {
  const rows = list(at(cands[0], "by_stratum"));
  if (rows.length < 2) return;
  section("stratum", "KL by stratum", dots({
            what: "Mean KL by stratum",
            head: "stratum",
            chosen,
            categories: rows.map((r) => r.stratum || "(none)"),
            positions: (i) => rows[i].positions,
            value: (k, i) => rowMean(same(cands[k].by_stratum, "stratum", rows[i].stratum)),
            interval: (k, i) => at(same(cands[k].by_stratum, "stratum", rows[i].stratum), "kl_ci95"),
          }));
}

function byConfidence() {
  const rows = list(at(cands[0], "by_confidence")).filter((r) => r.positions > 0);
  if (!rows.length) return;
  section(
      "confidence", "KL by confidence of the reference",
      note("Positions by the probability of the reference’s most probable token."), dots({
        what: "Mean KL by confidence",
        head: "largest probability",
        chosen,
        categories: rows.map((r) => r.from + " to " + r.to),
        positions: (i) => rows[i].positions,
        value: (k, i) => rowMean(same(cands[k].by_confidence, "from", rows[i].from)),
        interval: (k, i) => at(same(cands[k].by_confidence, "from", rows[i].from), "kl_ci95"),
      }));
}

/* ---- sampling ------------------------------------------------------------------------------- */

function sampling() {
  const tokens = (k, d) => at(cands[k], "acceptance", "expected_tokens", String(d));
  const depths = [1, 2, 3, 4, 5, 6, 7].filter((d) => cands.some((_, k) => isNumber(tokens(k, d))));
  const p = String(at(result, "settings", "top_p"));
  section(
      "sampling", "Nucleus and acceptance",
      note(
          "Nucleus at top-p ", p,
          ", temperature 1: q(Np) is the candidate’s mass on the reference’s nucleus, p(Nq) the reverse. Acceptance is that of the candidate as draft of the reference; “at most” is guaranteed."),
      table(
          [
            {name: "candidate"}, {name: "Jaccard of the nuclei"}, {name: "TV in the nuclei"}, {name: "q(Np)"},
            {name: "p(Nq)"}, {name: "acceptance, sampled"}, {name: "at most"}, {name: "greedy"},
            {name: "undecided positions"}
          ],
          cands.map(
              (c, k) =>
                  [bdi(short(k)), withRange(num(at(c, "top_p", "jaccard")), at(c, "top_p", "jaccard_ci95")),
                   withRange(num(at(c, "top_p", "tv")), at(c, "top_p", "tv_ci95")),
                   num(at(c, "top_p", "mass_on_reference")), num(at(c, "top_p", "mass_on_candidate")),
                   withRange(num(at(c, "acceptance", "sampling")), at(c, "acceptance", "sampling_ci95")),
                   num(at(c, "acceptance", "sampling_upper")), num(at(c, "acceptance", "greedy")),
                   count(at(c, "top_p", "undecided"))]),
          {caption: "Nucleus and acceptance"}),
      depths.length && [
        el("h3", null, "Expected tokens a step with the candidate as draft"), figure({
          label: () => "Expected tokens a step by number of drafted tokens for " +
              chosen().map(short).join(", ") + "; the most that is possible is one more than were drafted.",
          series: () =>
              [...chosen().map(
                   (k) => (
                       {...look(k), k, label: short(k), data: depths.map((d) => ({x: d, y: tokens(k, d)}))})),
               {
                 label: "all accepted",
                 borderColor: style("--soft"),
                 borderWidth: 1,
                 borderDash: [1, 3],
                 pointRadius: 0,
                 data: depths.map((d) => ({x: d, y: d + 1}))
               }],
          scales: () => ({
            x: {type: "linear", title: "drafted tokens K (dotted: all accepted)", ticks: {stepSize: 1}},
            y: {type: "linear", min: 1, title: "expected tokens a step", ticks: {stepSize: 1}}
          }),
          tooltip: {
            title: (i) => (i.length ? "K = " + i[0].parsed.x : ""),
            label: (i) => i.dataset.label + ": " + num(i.parsed.y)
          },
          data: () => table(
              [{name: "K"}, ...chosen().map((k) => ({name: bdi(short(k))}))],
              depths.map((d) => [String(d), ...chosen().map((k) => num(tokens(k, d)))]),
              {caption: "Expected tokens a step"}),
        })
      ]);
}
