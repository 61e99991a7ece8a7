/* Charts.  Each is a figure: the plot with a label that says what it shows, a key, and its numbers in
 * a table.  A candidate keeps its colour, dash and marker everywhere, so that none of them is needed
 * alone to tell it from others. */

const DASHES = [[], [7, 4], [2, 3], [11, 4, 2, 4], [4, 2]];
const MARKERS = ["circle", "rect", "triangle", "rectRot", "crossRot", "star"];
const MARKER_PATHS = {
  circle: "M13 6a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
  rect: "M13.5 2.5h7v7h-7z",
  triangle: "M17 1.5l4.5 8h-9z",
  rectRot: "M17 1l5 5l-5 5l-5-5z",
  crossRot: "M13.5 2.5l7 7m0-7l-7 7",
  star: "M13.5 2.5l7 7m0-7l-7 7M17 1v10M12 6h10",
};
const style = (name) => getComputedStyle(doc.documentElement).getPropertyValue(name).trim();
const seriesName = (k) => "--s" + (1 + (k % 8));
const dashOf = (k) => DASHES[(k + Math.floor(k / 8)) % DASHES.length];
const markerOf = (k) => MARKERS[(k + Math.floor(k / 8)) % MARKERS.length];

/* What a series has in common over all charts. */
function look(k) {
  const color = style(seriesName(k));
  return {
    borderColor: color,
    backgroundColor: color,
    borderDash: dashOf(k),
    borderWidth: 2,
    pointStyle: markerOf(k),
    pointRadius: 4,
    pointBorderWidth: 2,
    spanGaps: false
  };
}

function swatch(k) {
  const ns = "http://www.w3.org/2000/svg", svg = doc.createElementNS(ns, "svg");
  const part = (tag, attributes) => {
    const e = doc.createElementNS(ns, tag);
    for (const [name, v] of Object.entries(attributes)) e.setAttribute(name, v);
    svg.append(e);
  };
  for (const [name, v] of Object.entries(
           {width: 34, height: 12, "aria-hidden": "true", class: "swatch " + seriesName(k).slice(2)}))
    svg.setAttribute(name, v);
  part("path", {d: "M0 6h34", "stroke-dasharray": dashOf(k).join(" ") || "none"});
  part("path", {d: MARKER_PATHS[markerOf(k)], class: "marker"});
  return svg;
}

/* Intervals: dataset.ranges[i] is [lo, hi] or null, along x or y. */
const whiskers = {
  id: "whiskers",
  afterDatasetsDraw(chart) {
    const c = chart.ctx;
    chart.data.datasets.forEach((set, d) => {
      if (!set.ranges || !chart.isDatasetVisible(d)) return;
      const along = set.along || "y", scale = chart.scales[along];
      c.save();
      c.strokeStyle = set.borderColor;
      c.lineWidth = 1.5;
      chart.getDatasetMeta(d).data.forEach((p, i) => {
        const r = set.ranges[i];
        if (!isRange(r)) return;
        const a = scale.getPixelForValue(r[0]), b = scale.getPixelForValue(r[1]);
        c.beginPath();
        if (along === "x") {
          c.moveTo(a, p.y);
          c.lineTo(b, p.y);
          c.moveTo(a, p.y - 4);
          c.lineTo(a, p.y + 4);
          c.moveTo(b, p.y - 4);
          c.lineTo(b, p.y + 4);
        } else {
          c.moveTo(p.x, a);
          c.lineTo(p.x, b);
          c.moveTo(p.x - 4, a);
          c.lineTo(p.x + 4, a);
          c.moveTo(p.x - 4, b);
          c.lineTo(p.x + 4, b);
        }
        c.stroke();
      });
      c.restore();
    });
  },
};

/* The far end of all intervals: axes follow points alone by themselves. */
const upper = (sets) => Math.max(0, ...sets.flatMap((s) => list(s.ranges).filter(isRange).map((r) => r[1])));
/* Markers do not hide the line that they are on. */
const sized = (n) => (n > 20 ? 2.5 : 4);

const figures = [];

/* label(): what the plot shows, in words; series(): its datasets, those of candidates with their index
 * k; scales(series): axes with a title; data(): the table of its numbers; height(n) in pixels. */
function figure({label, series, scales, key = true, data, height, rows, tooltip}) {
  const canvas = el("canvas", {role: "img", "aria-label": label()});
  const plot = el("div", {class: "plot"}, canvas), legend = el("ul", {class: "key"}), f = {chart: null};
  const table_ = el("div");
  f.draw = () => {
    if (f.chart) f.chart.destroy();
    const sets = series();
    canvas.setAttribute("aria-label", label());
    if (height) plot.style.height = height(sets.length) + "px";
    const axis = (o) => ({
      grid: {color: style("--grid"), borderColor: style("--line")},
      ...o,
      ticks: {color: style("--soft"), ...(o.ticks || {})},
      title: {display: !!o.title, text: o.title || "", color: style("--soft")},
    });
    f.chart = new Chart(canvas, {
      type: "line",
      data: {datasets: sets},
      plugins: [whiskers],
      options: {
        animation: false,
        responsive: true,
        maintainAspectRatio: false,
        normalized: true,
        font: {size: 13},
        interaction: {mode: "nearest", intersect: false},
        layout: {padding: {right: 12, top: 6}},
        plugins: {legend: {display: false}, tooltip: {callbacks: tooltip || {}}},
        scales: Object.fromEntries(Object.entries(scales(sets)).map(([k, o]) => [k, axis(o)])),
      },
    });
    if (key)
      legend.replaceChildren(
          ...sets.filter((s) => s.k !== undefined).map((s) => el("li", null, swatch(s.k), bdi(s.label))));
    table_.replaceChildren(data());
  };
  figures.push(f);
  return el(
      "figure", null, key && legend, plot,
      el("details", {class: "data"}, el("summary", null, "Numbers of this chart"), table_));
}

function drawAll() {
  Chart.defaults.font.family = getComputedStyle(doc.body).fontFamily;
  for (const f of figures) f.draw();
}

/* Points with intervals, a row a category: candidates beside each other within a row. */
function dots({what, head, categories, positions, value, interval, chosen}) {
  const name = (row) => (categories[row].length > 24 ? categories[row].slice(0, 23) + "…" : categories[row]);
  return figure({
    label: () => what + " for " + chosen().map(short).join(", ") +
        ", as points with intervals; the numbers are in the table below.",
    series: () => {
      const n = chosen().length, step = 0.7 / Math.max(n, 2);
      return chosen().map(
          (k, i) => ({
            ...look(k),
            k,
            label: short(k),
            showLine: false,
            along: "x",
            data: categories.map((_, row) => ({x: value(k, row), y: row + (i - (n - 1) / 2) * step})),
            ranges: categories.map((_, row) => interval(k, row)),
          }));
    },
    height: (n) => 70 + categories.length * Math.max(30, 14 * n + 12),
    scales: (sets) => ({
      x: {type: "linear", beginAtZero: true, suggestedMax: upper(sets), title: "mean KL, nats"},
      y: {
        type: "linear",
        min: -0.5,
        max: categories.length - 0.5,
        reverse: true,
        afterBuildTicks: (s) => {
          s.ticks = categories.map((_, row) => ({value: row}));
        },
        ticks: {callback: (v) => name(v), autoSkip: false},
      },
    }),
    tooltip: {
      title: (items) => (items.length ? categories[Math.round(items[0].parsed.y)] : ""),
      label: (item) => {
        const r = item.dataset.ranges[item.dataIndex];
        return item.dataset.label + ": " + num(item.parsed.x) +
            (isRange(r) ? " (95 % " + range(r) + ")" : "");
      },
    },
    data: () => table(
        [{name: head}, {name: "positions"}, ...chosen().map((k) => ({name: bdi(short(k))}))],
        categories.map(
            (c, row) =>
                [bdi(c), count(positions(row)),
                 ...chosen().map((k) => withRange(num(value(k, row)), interval(k, row)))]),
        {caption: what}),
  });
}
