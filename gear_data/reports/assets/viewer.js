// The episode viewer: curves of all scalars, a cursor, frames and texts.
let view = () => {};

function viewer() {
  const v = data.viewer;
  if (!v.episodes.length) return;
  const at = new Map(data.table.id.map((id, i) => [id, i]));
  const label = (episode) => `episode ${episode.id}: ${plural(episode.length, "step")}, return ${at.has(episode.id) ? show(data.table.return[at.get(episode.id)]) : "–"}`;
  const select = el("select", { id: "viewer-episode", change: () => open(Number(select.value)) }, v.episodes.map((episode, i) => el("option", { value: i }, label(episode))));
  const slider = el("input", { type: "range", id: "viewer-step", min: 0, value: 0, "aria-label": "step", input: () => move(Number(slider.value)) });
  const step = el("output", { id: "viewer-at", for: "viewer-step" });
  const frames = el("div", { class: "frames", id: "viewer-frames" });
  const joints = el("div", { class: "grid small", id: "viewer-joints" });
  const curves = el("div", { class: "grid", id: "viewer-curves" });
  const values = el("details", {}, el("summary", {}, "Values at this step"));
  const task = el("p", { id: "viewer-task" });
  const still = el("p", { class: "soft" });
  const texts = el("div");
  let episode = v.episodes[0];
  let charts = [];

  function nearest(steps, wanted) {
    let best = 0;
    for (let i = 1; i < steps.length; i += 1) if (Math.abs(steps[i] - wanted) < Math.abs(steps[best] - wanted)) best = i;
    return best;
  }

  function valuesTable(place) {
    const rows = v.columns.flatMap((column, c) => episode.values[c].map((curve, i) => [column.size > 1 ? `${column.name}[${i}]` : column.name, show(curve[place])]));
    return plainTable("Values", ["column", "value"], rows, true);
  }

  function move(wanted) {
    const place = nearest(episode.steps, wanted);
    step.textContent = `step ${show(wanted)} of ${show(episode.length)}`;
    charts.forEach((figure) => figure.signal("cursor", wanted));
    if (values.open) fillValues(place);
    if (v.scrub && episode.frames) {
      const frame = nearest(episode.frames.steps, wanted);
      [...frames.querySelectorAll("figure")].forEach((figure, i) => {
        const source = episode.frames.images[i][frame];
        if (source) figure.querySelector("img").src = source;
        figure.querySelector("img").alt = `${v.pictures[i]} at step ${episode.frames.steps[frame]}`;
        figure.querySelector("figcaption").textContent = `${v.pictures[i]}, step ${show(episode.frames.steps[frame])}`;
      });
    }
  }

  function fillValues(place) {
    values.replaceChildren(values.firstChild, valuesTable(place));
  }
  values.addEventListener("toggle", () => { if (values.open) fillValues(nearest(episode.steps, Number(slider.value))); });

  function picture(name, source, at) {
    return el("figure", {}, source ? el("img", { src: source, alt: `${name} at step ${at}` }) : el("p", {}, "This picture cannot be read."), el("figcaption", {}, `${name}, step ${show(at)}`));
  }

  function open(index) {
    episode = v.episodes[index];
    select.value = String(index);
    slider.max = String(episode.length - 1);
    slider.value = "0";
    frames.replaceChildren();
    if (episode.frames) {
      v.pictures.forEach((name, i) => {
        const found = episode.frames.steps.map((at, k) => [at, episode.frames.images[i][k]]);
        frames.append(...(v.scrub ? found.slice(0, 1) : found).map(([at, source]) => picture(name, source, at)));
      });
    }
    task.replaceChildren(...(episode.task ? [el("strong", {}, "Task: "), episode.task] : []));
    const constant = [];
    const overlaid = v.overlays.map(overlay);
    charts = [];
    v.columns.forEach((column, c) => {
      if (column.overlaid) return;
      const lines = episode.values[c];
      const varied = lines.some((line) => line.some((value) => value !== line[0]));
      if (!varied) constant.push(`${column.name} (${lines.length === 1 ? show(lines[0][0]) : "constant"})`);
      else charts.push(curve(column, lines));
    });
    still.textContent = constant.length ? `Constant in this episode: ${constant.join(", ")}.` : "";
    joints.replaceChildren(...overlaid);
    curves.replaceChildren(...charts);
    charts.push(...overlaid);
    texts.replaceChildren(...episode.texts.map(({ name, texts: found }) => plainTable(name, ["step", name], found.map(([at, text]) => [String(at), text]))));
    move(0);
  }

  // The observations and actions of one joint, or of whatever has the same name in both.
  function overlay({ name, lines }) {
    const names = lines.map(([c]) => v.columns[c].name);
    return figureOf(name, `Line chart of ${names.join(" and ")} of ${name} over the steps of episode ${episode.id}`, lines.map(([c, i]) => episode.values[c][i]), names, 4);
  }

  function curve(column, lines) {
    const names = column.labels;
    const cut = column.size > names.length ? `, the first ${names.length} of ${column.size}` : "";
    return figureOf(`${column.name}${cut}`, `Line chart of ${column.name} over the steps of episode ${episode.id}`, lines, names, 8);
  }

  function figureOf(title, label, lines, names, ticks) {
    return chart(title, label, (colour) => ({
      height: 150,
      params: [{ name: "cursor", value: Number(slider.value) }],
      layer: [
        { data: { values: lines.flatMap((line, i) => line.map((value, k) => ({ step: episode.steps[k], value, dimension: names[i] }))) },
          mark: { type: "line", tooltip: true, clip: true },
          encoding: { x: { field: "step", type: "quantitative", title: null, axis: whole(episode.length - 1, ticks) }, y: { field: "value", type: "quantitative", title: null, scale: { zero: false } },
            ...(lines.length > 1 ? { color: { field: "dimension", type: "nominal", sort: names, title: null, scale: lines.length > 8 ? { scheme: "turbo" } : {}, legend: lines.length > 12 ? null : { columns: 6, symbolType: "stroke" } } } : {}) } },
        { data: { values: [{}] }, mark: { type: "rule", strokeWidth: 1.5, color: colour("chart-2") }, encoding: { x: { datum: { expr: "cursor" }, type: "quantitative" } } },
      ],
    }));
  }

  view = (id) => {
    const index = v.episodes.findIndex((each) => each.id === id);
    if (index >= 0) open(index);
    else announce(`Episode ${id} is not in the viewer.`);
  };
  section("viewer", "Episode viewer",
    el("p", {}, `${plural(v.episodes.length, "episode")} of ${show(data.summary.episodes)}: the best, the median and the worst return, outliers, and others in equal distances by return. Curves have at most 200 points.` +
      (v.pictures.length && !v.scrub ? " Frames are the first, the middle and the last one; gear-data report --frames N embeds more, for scrubbing." : "")),
    el("div", { class: "controls" }, el("label", {}, "episode", select), el("label", { style: "flex:1 1 14rem" }, "step", slider), step),
    task, frames, joints, still, curves, values, texts);
  open(0);
}
