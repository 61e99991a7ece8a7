"use strict";
/* Elements and numbers.  Text from the data enters the page as text nodes only. */

const doc = document;

/* el("td", {class: "num"}, "text", node, ...); null and false children are left out. */
function el(tag, attributes, ...children) {
  const e = doc.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {}))
    if (v !== null && v !== undefined && v !== false) e.setAttribute(k, v === true ? "" : v);
  add(e, children);
  return e;
}

function add(e, children) {
  for (const c of children.flat(9))
    if (c !== null && c !== undefined && c !== false) e.append(c);
  return e;
}

/* Names may be written from right to left: they must not turn what is around them. */
const bdi = (text) => el("bdi", null, String(text));
const code = (text) => el("code", null, bdi(text));
/* Texts of tokens hold pictures of control characters (U+2400 on), which few fonts have. */
function seen(text) {
  const name = {9: "\\t", 10: "\\n", 13: "\\r", 33: "DEL"};
  return String(text).split(/([\u2400-\u2421])/).map((part, i) => {
    const c = part.charCodeAt(0) - 0x2400;
    return i % 2 ? el("span", {class: "ctl"}, name[c] || "^" + String.fromCharCode(64 + c)) : part;
  });
}
const tok = (text) => el("code", {class: "tok"}, el("bdi", null, seen(text)));

const isNumber = (v) => typeof v === "number" && Number.isFinite(v);
const isObject = (v) => v !== null && typeof v === "object" && !Array.isArray(v);
const list = (v) => (Array.isArray(v) ? v : []);
/* at(o, "kl", "mean"): undefined when something on the way is missing. */
const at = (o, ...path) => path.reduce((x, k) => (x === null || x === undefined ? undefined : x[k]), o);

/* Four significant digits; 0 only for zero. */
function num(v, digits = 4) {
  if (!isNumber(v)) return "–";
  if (v === 0) return "0";
  const a = Math.abs(v);
  if (a < 1e-4 || a >= 1e6) return v.toExponential(digits - 1).replace("e+", "e").replace("-", "−");
  return v.toPrecision(digits).replace("-", "−");
}
const count = (v) => (isNumber(v) ? v.toLocaleString("en-US") : "–");
/* 99.96 must not read as 100. */
function percent(v, decimals = 1) {
  if (!isNumber(v)) return "–";
  const p = 100 * v, top = 100 - 10 ** -decimals;
  return (p >= 100 ? "100" : Math.min(p, top).toFixed(decimals)) + " %";
}
/* Of an interval whose unit stands above it. */
const percentOf = (v) => percent(v).replace(" %", "");

const isRange = (r) => Array.isArray(r) && isNumber(r[0]) && isNumber(r[1]);
const range = (r, show = num, to = " to ") => (isRange(r) ? show(r[0]) + to + show(r[1]) : "–");

/* A value, below it its interval when there is one. */
const withRange =
    (text, r,
     show =
         num) => [text, isRange(r) && el("small", null, range(r, show, r[0] < 0 ? " to " : "\u202f–\u202f"))];

/* rows of cells, each a string or node, or {show, sort} in a sortable table; the first cell of a row
 * is its header.  columns: [{name, text: true when not a number}]. */
function table(columns, rows, {caption, sortable} = {}) {
  const body = el("tbody");
  const kind_ =
      (c, first) => [(first || c.text) && "text", c.minor && "minor"].filter((x) => x).join(" ") || null;
  const show = (c) => (isObject(c) && "show" in c ? c.show : c);
  const key = (c) => (isObject(c) && "sort" in c ? c.sort : c);
  const lines = rows.map(
      (cells) => ({
        cells,
        tr:
            el("tr", null,
               cells.map(
                   (c, i) => el(i ? "td" : "th", i ? {class: kind_(columns[i])} : {scope: "row"}, show(c)))),
      }));
  const heads = columns.map((c, i) => {
    const th = el("th", {scope: "col", class: kind_(c, i === 0)});
    if (!sortable) return add(th, [c.name]);
    const button = el("button", {type: "button"}, c.name);
    button.addEventListener("click", () => {
      const down = th.getAttribute("aria-sort") === "ascending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      const missing = (v) => v === null || v === undefined || v === "–";
      lines.sort((a, b) => {
        const x = key(a.cells[i]), y = key(b.cells[i]);
        if (missing(x) || missing(y)) return missing(x) - missing(y);
        const order = isNumber(x) && isNumber(y) ? x - y : String(x).localeCompare(String(y));
        return down ? -order : order;
      });
      body.replaceChildren(...lines.map((l) => l.tr));
    });
    return add(th, [button]);
  });
  body.append(...lines.map((l) => l.tr));
  /* What scrolls must be reachable by keyboard. */
  return el(
      "div", {class: "scroll", tabindex: "0", role: "region", "aria-label": caption || "table"},
      el("table", null, caption && el("caption", null, caption), el("thead", null, el("tr", null, heads)),
         body));
}

function terms(pairs) {
  return el(
      "dl", null,
      pairs.filter((p) => p[1] !== null && p[1] !== undefined && p[1] !== "")
          .map(([k, v]) => [el("dt", null, k), el("dd", null, v)]));
}
