// The episode viewer: a player of the cameras, curves of all scalars with a cursor, texts. A mixture has one for each dataset.
let view = () => {};

function viewer() {
  const all = (data.viewers ?? [data.viewer]).filter((each) => each.episodes.length);
  if (!all.length) return;
  let v = all[0];
  const label = (episode) => `episode ${episode.id}: ${plural(episode.length, "step")}, return ${show(episode.return)}`;
  const chosen = el("select", { id: "viewer-dataset", change: () => choose(Number(chosen.value)) }, all.map((each, i) => el("option", { value: i }, each.name)));
  const select = el("select", { id: "viewer-episode", change: () => open(Number(select.value)) });
  const frames = el("div", { class: "frames", id: "viewer-frames" });
  const joints = el("div", { class: "grid small", id: "viewer-joints" });
  const curves = el("div", { class: "grid small", id: "viewer-curves" });
  const values = el("details", {}, el("summary", {}, "Values at this step"));
  const task = el("p", { id: "viewer-task" });
  const said = el("div", { id: "viewer-said" });
  const about = el("p");
  const still = el("p", { class: "soft" });
  const texts = el("div");
  const controls = player(move);
  controls.box.prepend(frames, said);
  let episode;
  let charts = [];
  let pictures = [];

  function nearest(steps, wanted) {
    let best = 0;
    for (let i = 1; i < steps.length; i += 1) if (Math.abs(steps[i] - wanted) < Math.abs(steps[best] - wanted)) best = i;
    return best;
  }

  function valuesTable(place) {
    const rows = v.columns.flatMap((column, c) => episode.values[c].map((curve, i) => [column.size > 1 ? `${column.name}[${i}]` : column.name, show(curve[place])]));
    return plainTable("Values", ["column", "value"], rows, true);
  }

  function move(wanted, playing) {
    // Vega draws a chart in a millisecond or two: while the player runs, only those that can be seen.
    charts.filter((figure) => !playing || seen(figure)).forEach((figure) => figure.signal("cursor", wanted));
    if (values.open && !playing) fillValues(nearest(episode.steps, wanted));
    pictures.forEach((update) => update(wanted));
    said.replaceChildren(...episode.texts.map(({ name, texts: found }) =>
      el("p", {}, el("strong", {}, `${name}: `), found.findLast(([at]) => at <= wanted)[1])));
  }

  function seen(node) {
    const { top, bottom } = node.getBoundingClientRect();
    return bottom > 0 && top < window.innerHeight;
  }

  function fillValues(place) {
    values.replaceChildren(values.firstChild, valuesTable(place));
  }
  values.addEventListener("toggle", () => { if (values.open) fillValues(nearest(episode.steps, controls.step())); });

  // The frames of one camera. `update` shows the frame nearest to a step.
  function picture(name, images) {
    const image = el("img", { decoding: "sync" });
    const missing = el("p", { hidden: true }, "This picture cannot be read.");
    const caption = el("figcaption");
    frames.append(el("figure", {}, image, missing, caption));
    let last = null;
    return (wanted) => {
      const frame = nearest(episode.frames.steps, wanted);
      if (frame === last) return;
      last = frame;
      const at = episode.frames.steps[frame];
      missing.hidden = Boolean(images[frame]);
      image.hidden = !images[frame];
      if (images[frame]) image.src = images[frame];
      image.alt = `${name} at step ${at}`;
      caption.replaceChildren(...breakable(name), `, step ${show(at)}`);
    };
  }

  function choose(index) {
    v = all[index];
    chosen.value = String(index);
    select.replaceChildren(...v.episodes.map((each, i) => el("option", { value: i }, label(each))));
    const rate = v.rate ? `At speed 1× the player shows ${plural(v.rate, "step")} a second, as the source states.`
      : `The source states no steps per second: at speed 1× the player shows ${USUAL_RATE}.`;
    about.textContent = `${plural(v.episodes.length, "episode")} of ${show(v.of)}: the best, the median and the worst return, outliers, and others in equal distances by return. ` +
      `Curves have at most ${v.points} points. ${rate}`;
    open(0);
  }

  function open(index) {
    episode = v.episodes[index];
    select.value = String(index);
    frames.replaceChildren();
    pictures = episode.frames ? v.pictures.map((name, i) => picture(name, episode.frames.images[i])) : [];
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
    texts.replaceChildren(...episode.texts.filter((each) => each.texts.length > 1).map(({ name, texts: found }) =>
      plainTable(name, ["step", name], found.map(([at, text]) => [String(at), text]), true)));
    controls.reset(episode.length, v.rate);
  }

  // The observations and actions of one joint, or of whatever has the same name in both.
  function overlay({ name, lines }) {
    const names = lines.map(([c]) => v.columns[c].name);
    return figureOf(name, `Line chart of ${names.join(" and ")} of ${name} over the steps of episode ${episode.id}`, lines.map(([c, i]) => episode.values[c][i]), names);
  }

  function curve(column, lines) {
    // The names of the elements: the title has the name of the column.
    const names = column.labels.map((each) => (each.startsWith(`${column.name}[`) ? each.slice(column.name.length + 1, -1) : each));
    const cut = column.size > names.length ? `, the first ${names.length} of ${column.size}` : "";
    return figureOf(`${column.name}${cut}`, `Line chart of ${column.name} over the steps of episode ${episode.id}`, lines, names);
  }

  function figureOf(title, label, lines, names) {
    const numbers = lines.flat();
    return chart(title, label, (colour) => ({
      height: 150,
      params: [{ name: "cursor", value: controls.step() }],
      layer: [
        { data: { values: lines.flatMap((line, i) => line.map((value, k) => ({ step: episode.steps[k], value, dimension: names[i] }))) },
          mark: { type: "line", tooltip: true, clip: true },
          encoding: { x: { field: "step", type: "quantitative", title: null, scale: { domain: [0, Math.max(1, episode.length - 1)], nice: false }, axis: whole(episode.length - 1, 4) }, y: { field: "value", type: "quantitative", title: null, scale: { zero: false }, ...(numbers.every(Number.isInteger) ? { axis: whole(Math.max(...numbers) - Math.min(...numbers)) } : {}) },
            ...(lines.length > 1 ? { color: { field: "dimension", type: "nominal", sort: names, title: null, scale: lines.length > 8 ? { scheme: { name: "turbo", extent: [0.15, 0.9] } } : {}, legend: lines.length > 12 ? null : { columns: Math.max(...names.map((each) => each.length)) < 4 ? 6 : 3, labelLimit: 80, symbolType: "stroke" } } } : {}) } },
        { data: { values: [{}] }, mark: { type: "rule", strokeWidth: 1.5, color: colour("chart-2") }, encoding: { x: { datum: { expr: "cursor" }, type: "quantitative" } } },
      ],
    }));
  }

  view = (id) => {
    const index = v.episodes.findIndex((each) => each.id === id);
    if (index >= 0) open(index);
    else announce(`Episode ${id} is not in the viewer.`);
  };
  section("viewer", "Episode viewer", about,
    el("div", { class: "controls" }, all.length > 1 ? el("label", {}, "dataset", chosen) : null, el("label", {}, "episode", select)),
    task, el("div", { class: "viewing" }, controls.box, el("div", {}, joints, still, curves)), values, texts);
  choose(0);
}
