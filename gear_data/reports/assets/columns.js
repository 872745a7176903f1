// Distributions of the columns, and the comparison with another dataset.
function dimensionRows() {
  const rows = [];
  for (const column of data.columns) {
    column.dimensions.forEach((d, i) => rows.push({ column, d, name: column.labels[i], order: rows.length }));
  }
  return rows;
}

function marks(row) {
  const { d } = row;
  const found = [];
  if (!d.count) found.push(["no finite values", "bad"]);
  if (d.nan) found.push([`${show(d.nan)} NaN`, "bad"]);
  if (d.infinite) found.push([`${show(d.infinite)} infinite`, "bad"]);
  if (d.constant) found.push(["constant", ""]);
  if (d.clipped) found.push([`clipped: ${percent(d.at_min)} at min, ${percent(d.at_max)} at max`, ""]);
  if (d.saturated !== null && d.saturated >= 0.05) found.push([`saturated: ${percent(d.saturated)}`, ""]);
  return found;
}

function columns() {
  const rows = dimensionRows();
  const state = { column: null, down: false };
  let onlyMarked = false;
  let shown = rows[0];
  const figure = chart("Histogram of the chosen dimension", "Histogram of the chosen dimension, with its quantiles", (colour) => histogramSpec(shown.d.edges, shown.d.counts, {
    x: shown.name, y: "values", integers: !shown.column.dtype.startsWith("float"), colour: colour("chart-2"),
    rules: shown.d.quantiles.map((at, i) => ({ at, name: percent(data.probabilities[i]) })).filter(({ at }) => at !== null && at >= shown.d.edges[0] && at <= shown.d.edges[shown.d.edges.length - 1]),
  }), null);
  const note = el("p", { class: "soft", id: "column-note" });
  const columnsOfTable = [
    { name: "dimension", key: (row) => row.order }, { name: "histogram" }, { name: "marks", key: (row) => -marks(row).length }, { name: "mean", key: (row) => row.d.mean, number: true },
    { name: "std", key: (row) => row.d.std, number: true }, { name: "min", key: (row) => row.d.min, number: true },
    ...data.probabilities.map((each, i) => ({ name: percent(each), key: (row) => row.d.quantiles[i], number: true })),
    { name: "max", key: (row) => row.d.max, number: true },
  ];
  const head = el("thead");
  const body = el("tbody");
  function choose(row) {
    shown = row;
    note.textContent = `${row.name}: ${plural(row.d.count, "value")}${row.column.stride > 1 ? ` (of one step in ${show(row.column.stride)})` : ""}${row.d.outside ? `; ${show(row.d.outside)} outside the chart` : ""}. Dashed lines are the quantiles of the table.`;
    figure.redraw();
  }
  function update() {
    const focused = head.contains(document.activeElement) ? [...head.querySelectorAll("button")].indexOf(document.activeElement) : -1;
    head.replaceChildren(sortableHead(columnsOfTable, state, update));
    if (focused >= 0) head.querySelectorAll("button")[focused].focus();
    body.replaceChildren(...sorted(rows.filter((row) => !onlyMarked || marks(row).length), state).map((row) => el("tr", {},
      el("th", { scope: "row" }, el("button", { type: "button", click: () => choose(row), title: "Show its histogram" }, breakable(row.name))),
      el("td", {}, miniHistogram(row.d.counts, `histogram of ${row.name} from ${show(row.d.edges[0])} to ${show(row.d.edges[row.d.edges.length - 1])}`)),
      el("td", {}, marks(row).map(([text, kind]) => el("span", { class: `badge ${kind}` }, text))),
      [row.d.mean, row.d.std, row.d.min, ...row.d.quantiles, row.d.max].map((value) => cell(show(value, 3), "td", { class: "number" })))));
    named(body.parentNode);
  }
  const hidden = data.columns.filter((column) => column.shape.length === 1 && column.shape[0] > column.dimensions.length);
  const actions = rows.filter((row) => row.d.saturated !== null);
  section("columns", "Columns",
    el("p", {}, "Clipped: at least 1% of the values equal the smallest or the largest one. Saturated: values within 0.1% of an end of the range, for actions. Constant dimensions have no information, and a standard deviation of 0."),
    hidden.length ? el("p", { class: "notice" }, `Only the first ${hidden[0].dimensions.length} dimensions are shown of: ${hidden.map((column) => `${column.name} (${column.shape[0]})`).join(", ")}.`) : null,
    rows.length ? [figure, note] : null,
    el("div", { class: "controls" }, el("label", { class: "row" }, el("input", { type: "checkbox", id: "only-marked", change: (event) => { onlyMarked = event.target.checked; update(); } }), "only marked dimensions")),
    scrolled("Dimensions", el("table", { id: "column-table", class: "dense" }, head, body), true),
    actions.length ? el("div", {}, el("h3", {}, "Action saturation"), chart("Share of steps at the end of the action's range", "Bar chart: share of saturated steps of each action dimension", () => ({
      height: 20 + 18 * actions.length, data: { values: actions.map((row) => ({ name: row.name, share: row.d.saturated, order: row.order })) }, mark: { type: "bar", tooltip: true },
      encoding: { y: { field: "name", type: "nominal", title: null, sort: { field: "order" } }, x: { field: "share", type: "quantitative", title: "share", axis: { format: "%", tickCount: 5 }, scale: { domain: [0, 1] } } },
    }), () => plainTable("Action saturation", ["dimension", "saturated"], actions.map((row) => [row.name, percent(row.d.saturated)])))) : null);
  if (rows.length) choose(rows[0]);
  update();
}

function comparison() {
  const c = data.comparison;
  if (!c) return;
  const state = { column: null, down: false };
  let shown = c.rows[0];
  const names = ["this dataset", "the other"];
  const figure = chart("Distributions of the chosen row", "Two histograms of the chosen row, as shares", () => {
    const values = [0, 1].flatMap((which) => shown.counts[which].map((count, i) => ({ from: shown.edges[i], to: shown.edges[i + 1], share: count / shown.values[which], dataset: names[which] })));
    return { data: { values }, mark: { type: "bar", opacity: 0.55, binSpacing: 0, tooltip: true },
      encoding: { x: { field: "from", bin: { binned: true }, type: "quantitative", title: shown.name, axis: { tickCount: 8 } }, x2: { field: "to" }, y: { field: "share", type: "quantitative", stack: null, axis: { format: "%" } }, color: { field: "dataset", type: "nominal", title: null, sort: names } } };
  });
  const columnsOfTable = [
    { name: "column", key: (row) => row.name }, { name: "KS statistic", key: (row) => row.statistic, number: true }, { name: "", key: null },
    { name: "mean", key: (row) => row.mean[0], number: true }, { name: "other's mean", key: (row) => row.mean[1], number: true },
    { name: "std", key: (row) => row.std[0], number: true }, { name: "other's std", key: (row) => row.std[1], number: true },
    { name: "shift of the mean, std", key: (row) => row.shift, number: true },
  ];
  state.column = columnsOfTable[1];
  state.down = true;
  const head = el("thead");
  const body = el("tbody");
  function update() {
    const focused = head.contains(document.activeElement) ? [...head.querySelectorAll("button")].indexOf(document.activeElement) : -1;
    head.replaceChildren(sortableHead(columnsOfTable, state, update));
    if (focused >= 0) head.querySelectorAll("button")[focused].focus();
    body.replaceChildren(...sorted(c.rows, state).map((row) => el("tr", {},
      el("th", { scope: "row" }, el("button", { type: "button", click: () => { shown = row; figure.redraw(); } }, breakable(row.name))),
      cell(row.statistic), el("td", {}, row.drifted ? el("span", { class: "badge" }, "drift") : ""),
      [row.mean[0], row.mean[1], row.std[0], row.std[1], row.shift].map((value) => cell(value, "td", { class: "number" })))));
    named(body.parentNode);
  }
  const missing = [["only here", c.only_here], ["only in the other", c.only_there], ["of another shape", c.other_shape]].filter(([, found]) => found.length);
  const mine = data.summary;
  section("comparison", "Comparison",
    el("p", {}, "With ", el("code", {}, c.path), c.sampled ? ". At least one of the two was sampled." : "."),
    plainTable("Both datasets", ["fact", "this dataset", "the other"], [["episodes", mine.episodes, c.facts.episodes], ["steps", mine.steps, c.facts.steps], ["bytes", bytes(mine.bytes), bytes(c.facts.bytes)],
      ["fingerprint", el("code", {}, mine.fingerprint), el("code", {}, c.facts.fingerprint)], ["source", mine.source, c.facts.source], ["format", mine.format, c.facts.format]].map((row) => row.map((value) => (typeof value === "number" ? show(value) : value)))),
    missing.map(([name, found]) => el("p", { class: "notice" }, `Columns ${name}: ${found.join(", ")}`)),
    el("p", {}, `The two-sample Kolmogorov-Smirnov statistic is the largest difference between the two cumulative distributions, 0 to 1. From ${c.drift} on a row is marked. There is no p-value, because steps of an episode depend on each other.`),
    c.rows.length ? figure : null, scrolled("Drift of each column", el("table", { id: "drift-table", class: "dense" }, head, body), true));
  update();
}
