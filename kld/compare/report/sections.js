/* ---- routes and cells ----------------------------------------------------------------------- */

const ROUTE = [
  ["top1_agreement", "top-1 expert"], ["slot_agreement", "same slot"], ["overlap", "overlap of sets"],
  ["exact_agreement", "same set"], ["weight_tv", "TV of weights"]
];

function routeAgreement() {
  const with_ = cands.map((_, k) => k).filter((k) => isObject(cands[k].routes));
  if (!with_.length) return;
  const mine = () => chosen().filter((k) => with_.includes(k)),
        layers = (k) => list(cands[k].routes.by_layer);
  const cells = (r, ci) => ROUTE.map(
      ([key]) => withRange(
          key === "weight_tv" ? num(r[key]) : percent(r[key]), ci && r[key + "_ci95"],
          key === "weight_tv" ? num : percentOf));
  const chart = (key, name) => figure({
    label: () => "Route agreement, " + name + ", by layer for " + mine().map(short).join(", ") + ".",
    series: () => mine().map((k) => ({
                               ...look(k),
                               k,
                               label: short(k),
                               pointRadius: sized(layers(k).length),
                               data: layers(k).map((r) => ({x: r.layer, y: 100 * r[key]}))
                             })),
    scales: () => ({
      x: {type: "linear", title: "layer with experts", ticks: {stepSize: 1, precision: 0, maxRotation: 0}},
      y: {type: "linear", max: 100, title: name + ", % of tokens"}
    }),
    tooltip: {
      title: (i) => (i.length ? "layer " + i[0].parsed.x : ""),
      label: (i) => i.dataset.label + ": " + num(i.parsed.y) + " %"
    },
    data: () => table(
        [{name: "layer"}, {name: "candidate", text: true}, ...ROUTE.map(([, n]) => ({name: n}))],
        mine().flatMap((k) => layers(k).map((r) => [String(r.layer), bdi(short(k)), ...cells(r, false)])),
        {caption: "Routes by layer"}),
  });
  section(
      "routes", "Routes of experts against the reference’s",
      table(
          [{name: "candidate"}, ...ROUTE.map(([, n]) => ({name: n}))],
          with_.map((k) => [bdi(short(k)), ...cells(cands[k].routes.overall, true)]), {
            caption: "Over " + count(cands[with_[0]].routes.tokens) + " tokens and " +
                count(cands[with_[0]].routes.layers) +
                (cands[with_[0]].routes.layers === 1 ? " layer" : " layers")
          }),
      with_.some((k) => layers(k).length > 1) &&
          el("div", {class: "two"}, chart("exact_agreement", "same set of experts"),
             chart("top1_agreement", "same top-1 expert")));
}

function cells() {
  const with_ = cands.map((_, k) => k).filter((k) => isObject(cands[k].cells));
  if (!with_.length) return;
  section(
      "cells", "The four cells",
      note(
          "Mean KL against the reference’s own capture: whose routes were taken, run by whose weights. The cells do not add up; the interaction is what both change less what each changes alone."),
      with_.map((k) => {
        const x = cands[k].cells;
        const cell = (name) => {
          const from = at(x, "candidates", name);
          return isNumber(x[name]) ?
              [num(x[name]), el("small", null, name + (isNumber(from) ? ", [" + (from + 1) + "]" : ""))] :
              ["–", el("small", null, name + ", not run")];
        };
        return [
          table(
              [{name: "routes of"}, {name: "weights of the reference"}, {name: "weights of the candidate"}],
              [["the reference", cell("BxB"), cell("BxQ")], ["the candidate", cell("QxB"), cell("QxQ")]],
              {caption: short(k)}),
          isNumber(x.interaction) &&
              el("p", null, "Interaction ", el("strong", null, num(x.interaction)),
                 isRange(x.interaction_ci95) ? " (95 % " + range(x.interaction_ci95) + ")" : "", " over ",
                 count(x.interaction_positions), " positions."),
          list(x.id_pinned)
              .map(
                  (p) =>
                      el("p", null, "Id-pinned, beside " + p.beside + ": ", num(p.kl_mean),
                         " [" + (p.candidate + 1) + "]"))
        ];
      }));
}

/* ---- trend ----------------------------------------------------------------------------------- */

function trend() {
  const groups = list(history).filter((g) => list(g.runs).length);
  if (!groups.length) return;
  const times = [...new Set(groups.flatMap((g) => g.runs.map((r) => String(r.time || r.label))))].sort();
  const day = (t) => String(t).replace(/T.*/, "");
  section(
      "trend", "Earlier runs", note("Mean KL of each run; a cross marks a run whose gates failed."), figure({
        label: () => "Mean KL of earlier runs for " + groups.map((g) => g.candidate).join(", ") + ", " +
            day(times[0]) + " to " + day(times[times.length - 1]) + ".",
        series: () => groups.map(
            (g, i) => ({
              ...look(i),
              k: i,
              label: String(g.candidate),
              data: g.runs.map((r) => ({x: times.indexOf(String(r.time || r.label)), y: r.kl_mean})),
              ranges: g.runs.map((r) => r.kl_ci95),
              pointStyle: (c) => (at(g.runs, c.dataIndex, "gate") === "failed" ? "crossRot" : "circle"),
              pointRadius: (c) => (at(g.runs, c.dataIndex, "gate") === "failed" ? 8 : 4),
            })),
        scales: (sets) => ({
          x: {
            type: "linear",
            min: -0.5,
            max: times.length - 0.5,
            ticks: {stepSize: 1, precision: 0, callback: (v) => (times[v] === undefined ? "" : day(times[v]))}
          },
          y: {type: "linear", beginAtZero: true, suggestedMax: upper(sets), title: "mean KL, nats"},
        }),
        tooltip: {
          title: (i) => (i.length ? times[i[0].parsed.x] : ""),
          label: (i) => i.dataset.label + ": " + num(i.parsed.y)
        },
        data:
            () =>
                table(
                    [
                      {name: "run"}, {name: "candidate", text: true}, {name: "label", text: true},
                      {name: "mean KL"}, {name: "gate", text: true}
                    ],
                    groups.flatMap(
                        (g) => g.runs.map(
                            (r) =>
                                [String(r.time || ""), bdi(g.candidate), bdi(r.label || ""),
                                 withRange(num(r.kl_mean), r.kl_ci95),
                                 el("span", {class: r.gate === "failed" ? "bad" : null}, r.gate || "–")])),
                    {caption: "Runs"}),
      }));
}

/* ---- worst positions --------------------------------------------------------------------------- */

const said =
    (text,
     id) => [typeof text === "string" ? tok(text) : "id", " ", el("span", {class: "soft num"}, String(id))];

function topFive(rows, name, next) {
  if (!list(rows).length) return null;
  return el(
      "table", null, el("caption", null, name),
      el("thead", null,
         el("tr", null, el("th", {scope: "col", class: "text"}, "token"),
            el("th", {scope: "col"}, "probability"))),
      el("tbody", null,
         rows.map(
             (r) =>
                 el("tr", {class: r.id === next ? "next" : null},
                    el("td", {class: "tokcell"}, said(r.text, r.id), r.id === next && " ← next"),
                    el("td", null, isNumber(r.lp) ? num(Math.exp(r.lp), 3) : "0")))));
}

function worstCase(w) {
  const text = at(w, "context", "text"), ids = list(at(w, "context", "ids"));
  const next = typeof w.next_text === "string" ? w.next_text : null;
  return el(
      "div", {class: "case"},
      el("h4", null, "KL ", num(w.kl),
         el("span", {class: "soft"}, " – window " + w.window + ", position " + w.position + ", ",
            bdi(w.cluster || ""), w.stratum ? [" (", bdi(w.stratum), ")"] : "")),
      typeof text === "string" ?
          el("p", {class: "context", dir: "auto"}, "…", seen(text),
             el("mark", null, next === null ? "#" + w.next_id : seen(next))) :
          el("p", {class: "soft"},
             ids.length ? ["Ids before it: ", code(ids.join(" ")), ", then ", code(w.next_id)] :
                          [
                            "Next id ", code(w.next_id), "; most probable ids: reference ",
                            code(w.top1_reference), ", candidate ", code(w.top1_candidate)
                          ]),
      el("div", {class: "tops"}, topFive(w.reference_top5, "Reference", w.next_id),
         topFive(w.candidate_top5, "Candidate", w.next_id)));
}

function worst() {
  const with_ = cands.map((_, k) => k).filter((k) => list(at(cands[k], "kl", "worst")).some((w) => w.kl > 0));
  if (!with_.length) return;
  const texts = with_.some((k) => typeof cands[k].kl.worst[0].next_text === "string");
  section(
      "worst", "Worst positions",
      texts ?
          note(
              "The text before the position, then the token that follows (marked). Bytes that are no text are shown as �, control characters by name: ",
              seen("\u240a"), " is a line break.") :
          note("Give kld compare --tokenizer DIR to see the text of these positions."),
      with_.map(
          (k, i) =>
              el("details", {open: i < 1},
                 el("summary", null, el("span", {class: "chip " + seriesName(k).slice(2)}), bdi(short(k)),
                    ": " + cands[k].kl.worst.length + " positions of largest KL"),
                 cands[k].kl.worst.map(worstCase))));
}

/* ---- the end ------------------------------------------------------------------------------------ */

function warnings() {
  const all = list(result.warnings);
  if (!all.length) return;
  const loud = ["invalid", "excluded", "arithmetic_mismatch", "infinite", "replay_broken"];
  section(
      "warnings", "Warnings",
      el("ul", null,
         all.map(
             (w) =>
                 el("li", {class: loud.includes(w.code) ? "bad" : null},
                    isNumber(w.candidate) && [bdi(short(w.candidate)), ": "], String(w.text)))));
}

const plain = (v) =>
    (v === null || v === undefined ? "none" :
         v === true                ? "yes" :
         v === false               ? "no" :
         typeof v === "number"     ? String(v) :
         isObject(v)               ? Object.entries(v).map(([k, x]) => k + " " + plain(x)).join(", ") :
         Array.isArray(v)          ? v.map(plain).join(", ") :
                                     v);

function identity(side) {
  const keys = [
    ["activations", "activations"], ["compared", "capture"], ["partition", "partition"], ["file", "path"],
    ["capture digest", "content_digest"], ["model digest", "model_digest"],
    ["model digest, every byte", "model_full_digest"], ["suite digest", "suite_digest"],
    ["tokenizer digest", "tokenizer_digest"], ["vocabulary", "vocab"], ["list length", "top_k"],
    ["draws from the tail", "tail_samples"], ["tail mass", "tail_mass"], ["routes", "routing"],
    ["quantization", "quant"], ["engine", "engine"]
  ];
  return terms(keys.map(
      ([name, key]) =>
          [name,
           side[key] === undefined || side[key] === null || side[key] === "" ?
               null :
               key === "quant" || key === "engine" || key === "routing" ?
               el("ul", null,
                  Object.entries(side[key]).map(
                      ([k, v]) => el("li", null, k.replaceAll("_", " ") + ": ", bdi(plain(v))))) :
               key.endsWith("digest") ? code(side[key]) :
                                        bdi(plain(side[key]))]));
}

function identities() {
  section(
      "identity", "Identities and settings", el("h3", null, "Reference: ", full(reference)),
      identity(reference), cands.map((c, k) => [el("h3", null, "[" + (k + 1) + "] ", full(c)), identity(c)]),
      el("h3", null, "Settings"),
      terms(Object.entries(result.settings || {}).map(([k, v]) => [k.replaceAll("_", " "), bdi(plain(v))])));
}

/* ---- all of it ------------------------------------------------------------------------------------ */

function page() {
  const names = cands.length === 1 ? full(cands[0]) : cands.length + " candidates";
  doc.title = "KL report: " + reference.name;
  add(doc.getElementById("top"), [
    el("h1", null, "How faithful to ", full(reference), "?"),
    el("p", {class: "soft"}, names, " against the reference: ", count(result.positions), " positions in ",
       count(result.windows), " windows of ", count(result.clusters),
       " source clusters. Divergences in nats.")
  ]);
  verdict();
  candidateTable();
  chooser();
  distribution();
  byPosition();
  byStratum();
  byConfidence();
  sampling();
  routeAgreement();
  cells();
  trend();
  worst();
  warnings();
  identities();
  add(doc.getElementById("contents"),
      [el("ul", null, sections.map(([id, title]) => el("li", null, el("a", {href: "#" + id}, title))))]);
  add(doc.getElementById("end"),
      ["kld " + plain(at(result, "tool", "version")) + ", commit " + plain(at(result, "tool", "commit")) +
       ". This file is complete: it loads nothing from elsewhere."]);
}

addEventListener("error", (e) => {
  doc.getElementById("main").prepend(
      el("p", {class: "notice"}, "This page could not be drawn in full: " + e.message));
});
page();
drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
/* Paper is light whatever the screen is. */
addEventListener("beforeprint", () => {
  doc.documentElement.classList.add("paper");
  drawAll();
});
addEventListener("afterprint", () => {
  doc.documentElement.classList.remove("paper");
  drawAll();
});
