// Charts by Vega-Lite: drawn when they come into view, again when the theme changes, and all of them before printing.
const drawn = new Set();
const waiting = new Map();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, { rootMargin: "300px" });

// Okabe and Ito's colours, which colour-blind people can tell apart. Yellow and black are left out on white, and black and
// the darkest blue on black.
const LIGHT = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#7f7f7f"];
const DARK = ["#56b4e9", "#e69f00", "#1fc296", "#e39bc4", "#f0e442", "#ff7f32", "#b9a3f5", "#b0b0b0"];

function colours() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

function chartConfig() {
  const colour = colours();
  return {
    background: null,
    font: "system-ui, sans-serif",
    axis: { labelColor: colour("text"), titleColor: colour("text"), gridColor: colour("line"), domainColor: colour("soft"), tickColor: colour("soft"), labelFontSize: 11, titleFontSize: 12, titleFontWeight: 500 },
    legend: { labelColor: colour("text"), titleColor: colour("text"), labelLimit: 220, orient: "bottom", columns: 4 },
    view: { stroke: null },
    bar: { color: colour("chart") },
    line: { color: colour("chart"), strokeWidth: 1.6 },
    point: { color: colour("chart"), filled: true, size: 22, opacity: 0.65 },
    range: { category: isDark() ? DARK : LIGHT },
  };
}

// A figure: `make(colour)` returns the specification; `label` describes it; `table` returns the same as a table.
function chart(title, label, make, table = null) {
  const target = el("div", { class: "chart" });
  waiting.set(target, { make, label, view: null });
  watcher.observe(target);
  const figure = el("figure", {}, el("figcaption", {}, title), target);
  if (table) {
    const details = el("details", {}, el("summary", {}, "Show as a table"));
    details.addEventListener("toggle", () => {
      if (details.open && details.children.length === 1) details.append(table());
    });
    figure.append(details);
  }
  figure.redraw = () => (drawn.has(target) ? draw(target) : Promise.resolve());
  figure.signal = (name, value) => waiting.get(target).view?.signal(name, value).runAsync();
  return figure;
}

async function draw(target) {
  const entry = waiting.get(target);
  watcher.unobserve(target);
  drawn.add(target);
  const spec = { width: "container", height: 220, autosize: { type: "fit-x", contains: "padding" }, description: entry.label, ...entry.make(colours()) };
  entry.view?.finalize();
  entry.view = null;
  const result = await window.vegaEmbed(target, spec, { mode: "vega-lite", actions: false, renderer: "svg", ast: true, config: chartConfig(), tooltip: { theme: isDark() ? "dark" : "light" }, logLevel: 1 });
  entry.view = result.view;
}

async function drawAll() {
  await Promise.all([...waiting.keys()].filter((target) => target.isConnected).map(draw));
}

async function redrawAll() {
  await Promise.all([...drawn].filter((target) => target.isConnected).map(draw));
}

// Axis of counts or steps over `span`: a tick between two whole numbers would say one of them twice.
function whole(span, most = 5) {
  return { tickCount: Math.max(1, Math.min(most, Math.floor(span))), format: ",d" };
}

function histogramSpec(edges, counts, options = {}) {
  const values = counts.map((count, i) => ({ from: edges[i], to: edges[i + 1], count }));
  const bars = {
    data: { values },
    mark: { type: "bar", binSpacing: 0.5, tooltip: true },
    encoding: {
      x: { field: "from", bin: { binned: true }, type: "quantitative", title: options.x ?? null, axis: options.integers ? whole(edges[edges.length - 1] - edges[0], 8) : { tickCount: 8 } },
      x2: { field: "to" },
      y: { field: "count", type: "quantitative", title: options.y ?? "count", axis: whole(Math.max(...counts)) },
    },
  };
  const rules = (options.rules ?? []).map(({ at, name }) => ({ at, name }));
  if (!rules.length) return bars;
  return { layer: [bars, {
    data: { values: rules },
    mark: { type: "rule", strokeDash: [4, 3], strokeWidth: 1.5, color: options.colour, tooltip: true },
    encoding: { x: { field: "at", type: "quantitative" }, tooltip: [{ field: "name", title: "quantile" }, { field: "at", title: "value" }] },
  }] };
}

function stackedHistogramSpec(edges, groups, names, title, integers) {
  const values = [];
  groups.forEach((counts, place) => counts.forEach((count, i) => {
    if (count) values.push({ from: edges[i], to: edges[i + 1], count, group: names[place], order: place });
  }));
  return {
    data: { values },
    mark: { type: "bar", binSpacing: 0.5, tooltip: true },
    encoding: {
      x: { field: "from", bin: { binned: true }, type: "quantitative", title, axis: integers ? whole(edges[edges.length - 1] - edges[0], 8) : { tickCount: 8 } },
      x2: { field: "to" },
      y: { field: "count", type: "quantitative", title: "episodes", stack: true, axis: whole(Math.max(...groups[0].map((_, i) => groups.reduce((sum, counts) => sum + counts[i], 0)))) },
      // Not `sort`, which would make expressions of the names.
      color: { field: "group", type: "nominal", title: null, scale: { domain: names } },
      order: { field: "order" },
    },
  };
}

function binTable(edges, counts) {
  return plainTable("Bins of the histogram", ["from", "to", "count"],
    counts.map((count, i) => [edges[i], edges[i + 1], count]).filter((row) => row[2]), true);
}

// A small histogram without axes.
function miniHistogram(counts, label, width = 120, height = 26) {
  const most = Math.max(1, ...counts);
  const step = width / Math.max(1, counts.length);
  const path = counts.map((count, i) => {
    const top = count ? Math.max(1, (count / most) * height) : 0;
    return `M${(i * step).toFixed(1)} ${height}v${(-top).toFixed(1)}h${step.toFixed(2)}v${top.toFixed(1)}z`;
  }).join("");
  return svg("svg", { class: "mini", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    svg("path", { d: path }));
}
