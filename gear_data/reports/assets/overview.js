// Facts, findings, returns and lengths, outliers, visitation, targets, sampler.
function header() {
  const button = el("button", { type: "button", id: "theme" });
  const label = () => { button.textContent = isDark() ? "☀ Light" : "☾ Dark"; };
  button.addEventListener("click", async () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    label();
    await redrawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { label(); redrawAll(); });
  label();
  document.getElementById("top").append(
    el("div", {}, el("h1", {}, data.name), el("p", {}, [data.path, `gear-data ${data.version}`].filter(Boolean).join(" · "))),
    el("button", { type: "button", click: async () => { await drawAll(); window.print(); } }, "Print"), button);
}

function sampleNotice() {
  const sample = data.sample;
  if (sample.complete) return null;
  return el("p", { class: "notice", id: "sampled" },
    `Sampled: steps were read of ${show(sample.episodes)} of ${show(sample.of_episodes)} episodes, drawn at random ` +
    `(${show(sample.steps)} of ${show(sample.of_steps)} steps), because the dataset has more than ${show(sample.limit)} steps. ` +
    "Returns, lengths, ends, groups and the sampler are of all episodes.");
}

function overview() {
  const s = data.summary;
  const success = data.rates[0].success;
  section("overview", "Overview", sampleNotice(), cards([
    ["episodes", show(s.episodes)], ["steps", show(s.steps)],
    ["return, mean", s.return && show(s.return.mean)], ["return, range", s.return && `${show(s.return.min)} to ${show(s.return.max)}`],
    ["length, mean", s.length && show(s.length.mean)], ["length, range", s.length && `${show(s.length.min)} to ${show(s.length.max)}`],
    ["terminated", percent(data.rates[0].terminated)], ["truncated", percent(data.rates[0].truncated)],
    ["success", success === null ? null : percent(success)],
    ["size", `${bytes(s.bytes)} in ${plural(s.shards, "shard")}`], ["generation", s.generation || null],
    ["findings", el("a", { href: "#findings" }, show(data.findings.length))],
  ]),
  folded("Columns and cameras",
    plainTable("Columns", ["column", "dtype", "shape"], Object.entries(s.columns).map(([name, column]) =>
      [name, column.dtype, column.shape.join(" × ") || "scalar"])),
    cameras(s.cameras)),
  folded("Fingerprint and provenance", plainTable("Provenance", ["fact", "value"], [["fingerprint", el("code", {}, s.fingerprint)],
    ...Object.entries(data.provenance).map(([name, value]) => [name, typeof value === "number" ? String(value) : value])])));
}

function cameras(found) {
  if (!Object.keys(found).length) return null;
  return plainTable("Cameras", ["camera", "shape", "frames per second", "codec", "frames", "files", "size"],
    Object.entries(found).map(([name, camera]) => [name, camera.shape.join(" × "), camera.fps ?? "unknown", camera.codecs.join(", "),
      camera.frames, camera.files, bytes(camera.bytes)]));
}

function findings() {
  const place = (finding) => [finding.file, finding.row === null || finding.row === undefined ? null : `row ${finding.row}`].filter(Boolean).join(", ");
  section("findings", "Findings", data.findings.length ? data.findings.map((finding) => el("article", { class: "finding" },
    el("p", {}, el("strong", {}, finding.code), finding.column ? [" in column ", el("code", {}, finding.column)] : null, el("span", { class: "soft" }, ` ${show(finding.count)}×`)),
    el("p", {}, finding.message),
    finding.advice ? el("p", {}, el("strong", {}, "What to do: "), finding.advice) : null,
    place(finding) ? el("p", { class: "soft" }, `First place: ${place(finding)}`) : null)) : el("p", {}, "The conversion found nothing odd."));
}

function groupingSelect(name, changed) {
  const groupings = Object.keys(data.groups);
  if (!groupings.length) return null;
  return el("div", { class: "controls" }, el("label", {}, name, el("select", { change: (event) => changed(event.target.value) },
    el("option", { value: "" }, "nothing"), groupings.map((each) => el("option", { value: each }, each)))));
}

function returns() {
  const h = data.histograms;
  let grouping = "";
  const figures = [];
  for (const name of ["return", "length"]) {
    if (!h[name].counts.length) continue;
    const unit = name === "length" ? "steps of an episode" : "return of an episode";
    figures.push(chart(`${name === "length" ? "Lengths" : "Returns"} of the episodes`, `Histogram of the ${unit}`,
      () => (grouping ? stackedHistogramSpec(h[name].edges, h[name].groups[grouping], data.groups[grouping].names, unit, name === "length")
        : histogramSpec(h[name].edges, h[name].counts, { x: unit, y: "episodes", integers: name === "length" })),
      () => binTable(h[name].edges, h[name].counts)));
  }
  const t = data.table;
  if (h.return.counts.length) figures.push(chart("Return and length", "Scatter plot of the return against the length of each episode", () => ({
    data: { values: t.id.map((id, i) => ({ id, length: t.length[i], return: t.return[i], group: grouping ? data.groups[grouping].names[t[grouping][i]] : null })) },
    mark: { type: "point", tooltip: true },
    encoding: {
      x: { field: "length", type: "quantitative", title: "steps", scale: { zero: false }, axis: whole(Math.max(1, h.length.edges[h.length.edges.length - 1] - h.length.edges[0])) },
      y: { field: "return", type: "quantitative", scale: { zero: false } },
      ...(grouping ? { color: { field: "group", type: "nominal", title: null, scale: { domain: data.groups[grouping].names } }, shape: { field: "group", type: "nominal", title: null, scale: { domain: data.groups[grouping].names } } } : {}),
      tooltip: [{ field: "id", title: "episode" }, { field: "return" }, { field: "length" }, ...(grouping ? [{ field: "group", title: grouping }] : [])],
    },
  })));
  const rates = data.rates;
  section("returns", "Returns and lengths",
    groupingSelect("colour by", (value) => { grouping = value; figures.forEach((figure) => figure.redraw()); }),
    el("div", { class: "grid" }, figures),
    t.id.length < t.total ? el("p", { class: "soft" }, `The scatter plot has ${show(t.id.length)} of ${show(t.total)} episodes.`) : null,
    el("h3", {}, "How episodes end"),
    plainTable("Rates by group", ["episodes by", "value", "episodes", "steps", "terminated", "truncated", "success", "mean return", "mean length"],
      rates.map((rate) => [rate.grouping, rate.group, rate.episodes, rate.steps, percent(rate.terminated), percent(rate.truncated), percent(rate.success), rate.return, rate.length]), true));
}

const MEASURES = {
  length: "Number of steps", return: "Sum of the rewards",
  jerk: "Mean third difference of the actions: shaky control, or noise",
  idle: "Share of steps that do not move: a stuck or waiting robot",
  jump: "Longest move between two steps, in standard deviations: dropped frames, joined rollouts",
};

function usual({ low, high }) {
  if (low === null && high === null) return "any";
  return low === null ? `up to ${show(high)}` : high === null ? `from ${show(low)}` : `${show(low)} to ${show(high)}`;
}

function outliers() {
  const rows = data.outliers.map((each) => [each.measure, MEASURES[each.measure],
    each.measure === "idle" ? percent(each.median) : each.median, usual(each), each.count,
    each.count ? el("span", {}, each.episodes.slice(0, 12).flatMap((id, i) => [
      el("a", { href: "#viewer", click: () => view(id) }, String(id)), el("span", { class: "soft" }, ` (${show(each.values[i])}) `)]),
    each.count > 12 ? `and ${show(each.count - 12)} more` : "") : "none"]);
  section("outliers", "Outliers",
    el("p", {}, "An episode is an outlier if its modified z-score exceeds 3.5: its distance from the median, in units of 1.4826 times the median absolute deviation. Look at these before you leave them out."),
    plainTable("Outliers by measure", ["measure", "meaning", "median", "usual", "outliers", "episodes, farthest first (value)"], rows));
}

function visitation() {
  const v = data.visitation;
  if (!v) return;
  const state = { x: 0, y: 1 };
  const scale = (axis, value) => v.min[axis] + (value / v.grid) * (v.max[axis] - v.min[axis]);
  const rewarded = v.return.some((value) => value !== null);
  const by = rewarded ? ", coloured by the return of their episode" : "";
  const figure = chart(`States${by}`, `Scatter plot of ${plural(v.return.length, "state")} in two dimensions${by}`, () => ({
    height: 380,
    data: { values: v.return.map((value, i) => ({ x: scale(state.x, v.points[state.x][i]), y: scale(state.y, v.points[state.y][i]), return: value, episode: v.episode[i] })) },
    mark: { type: "point", tooltip: true, size: 16 },
    encoding: {
      x: { field: "x", type: "quantitative", title: v.axes[state.x], scale: { zero: false }, axis: { tickCount: 8 } },
      y: { field: "y", type: "quantitative", title: v.axes[state.y], scale: { zero: false }, axis: { tickCount: 8 } },
      ...(rewarded ? { color: { field: "return", type: "quantitative", scale: { scheme: "viridis" }, legend: { orient: "right", columns: 1 } } } : {}),
    },
  }));
  const pick = (axis) => el("label", {}, axis === "x" ? "across" : "up", el("select", { id: `visit-${axis}`, change: (event) => { state[axis] = Number(event.target.value); figure.redraw(); } },
    v.axes.map((name, i) => el("option", { value: i, selected: i === state[axis] }, name))));
  section("visitation", "State visitation",
    el("p", {}, `${show(v.return.length)} of ${show(v.steps)} steps of column ${v.column}, drawn at random. The two principal components of the standardised ` +
      `observations hold ${percent(v.variance[0])} and ${percent(v.variance[1])} of the variance. A policy can only be judged where there are states.`),
    el("div", { class: "controls" }, pick("x"), pick("y")), figure);
}

function targets() {
  const t = data.targets;
  if (!t) return;
  const p = t.probabilities;
  const rows = t.steps.map((step, i) => ({ step, low: t.quantiles[i][0], q1: t.quantiles[i][1], middle: t.quantiles[i][2], q3: t.quantiles[i][3], high: t.quantiles[i][4], episodes: t.episodes[i] })).filter((row) => row.middle !== null);
  section("targets", "Return targets",
    el("p", {}, `Targets for a Decision Transformer: returns-to-go that the data hold${t.discount === 1 ? "" : `, with discount ${t.discount}`}. A target far above the largest return of an episode asks for something never seen.`),
    cards([["median return", show(t.targets.median)], ["best 10% from", show(t.targets.top_10_percent)], ["best 1% from", show(t.targets.top_1_percent)], ["largest", show(t.targets.largest)], ["returns-to-go", `${show(t.smallest)} to ${show(t.largest)}`]]),
    chart("Returns-to-go by step", "Quantiles of the returns-to-go over the episodes that reach each step", (colour) => ({
      data: { values: rows },
      encoding: { x: { field: "step", type: "quantitative", title: "step", axis: whole(t.steps[t.steps.length - 1], 8) } },
      layer: [
        { mark: { type: "area", opacity: 0.18, color: colour("chart") }, encoding: { y: { field: "low", type: "quantitative", title: "returns-to-go" }, y2: { field: "high" } } },
        { mark: { type: "area", opacity: 0.3, color: colour("chart") }, encoding: { y: { field: "q1", type: "quantitative" }, y2: { field: "q3" } } },
        { mark: { type: "line", tooltip: true }, encoding: { y: { field: "middle", type: "quantitative" }, tooltip: ["step", "low", "q1", "middle", "q3", "high", "episodes"].map((field) => ({ field })) } },
      ],
    }), () => plainTable("Quantiles of the returns-to-go", ["step", ...p.map((each) => percent(each)), "episodes"], rows.map((r) => [r.step, r.low, r.q1, r.middle, r.q3, r.high, r.episodes]), true)),
    el("p", { class: "soft" }, "The line is the median; the bands hold 50% and 90% of the episodes that are that long."));
}

function sampler() {
  const s = data.sampler;
  if (!s) return;
  const tenths = s.by_return.flatMap((part, i) => [["sampler", part.share], ["steps", part.steps]].map(([kind, share]) =>
    ({ part: i + 1, kind, share, range: `${show(part.from)} to ${show(part.to)}` })));
  const groups = Object.entries(s.groups).flatMap(([grouping, found]) => found.names.map((name, i) => [grouping, name, percent(found.share[i]), percent(found.steps[i])]));
  section("sampler", "Sampler",
    el("p", {}, el("code", {}, s.sampler)),
    cards([["effective episodes", `${show(s.effective_episodes)} of ${show(s.episodes)}`], ["effective steps", `${show(s.effective_steps)} of ${show(s.steps)}`],
      ["never drawn", plural(s.never_drawn, "episode")], ["most drawn", `episode ${s.most_drawn.episode}: ${percent(s.most_drawn.share)}`],
      ["mean return of draws", show(s.mean_return)], ["mean return of steps", show(s.mean_return_of_steps)]]),
    chart("Draws by return", "Share of the draws, and of the steps, of each tenth of the episodes by return", () => ({
      data: { values: tenths }, mark: { type: "bar", tooltip: true },
      encoding: { x: { field: "part", type: "ordinal", title: "tenth of the episodes, by return", axis: { labelAngle: 0 } }, xOffset: { field: "kind" },
        y: { field: "share", type: "quantitative", title: "share", axis: { format: "%" } }, color: { field: "kind", type: "nominal", title: null },
        tooltip: [{ field: "kind" }, { field: "share", format: ".1%" }, { field: "range", title: "returns" }] },
    }), () => plainTable("Draws by return", ["tenth", "returns", "draws", "steps"], s.by_return.map((part, i) => [i + 1, `${show(part.from)} to ${show(part.to)}`, percent(part.share), percent(part.steps)]))),
    groups.length ? plainTable("Mixture", ["episodes by", "value", "draws", "steps"], groups) : null);
}
