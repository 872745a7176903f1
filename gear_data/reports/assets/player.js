// Controls that move through the steps of an episode: play and pause, one step back and on, a slider, the speed.
const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
// Steps per second of data that do not state them.
const USUAL_RATE = 20;
// A page in the background draws no frame: it goes on where it was.
const LONGEST_WAIT = 0.25;

function icon(path) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: path }));
}
const ICONS = { play: "M3 1.5v13l11-6.5z", pause: "M3 2h4v12H3zM9 2h4v12H9z", back: "M11.5 2v12L4 8z", on: "M4.5 2v12L12 8z" };

// `moved(step, playing)` is called for each step that is shown. Returns `box`, `bar`, `reset(length, rate)` and `step()`.
function player(moved) {
  let [length, rate, speed, at, before, playing] = [1, null, 1, 0, 0, false];
  const play = el("button", { type: "button", id: "viewer-play", class: "main", title: "Space", click: () => toggle() });
  const slider = el("input", { type: "range", id: "viewer-step", min: 0, value: 0, "aria-label": "step", input: () => seek(Number(slider.value)) });
  const output = el("output", { id: "viewer-at", for: "viewer-step", "aria-live": "off" });
  const speeds = el("select", { id: "viewer-speed", change: () => { speed = Number(speeds.value); } },
    SPEEDS.map((each) => el("option", { value: each, selected: each === 1 }, `${each}×`)));
  const by = (steps, name, shape) => el("button", { type: "button", "aria-label": name, title: name, click: () => seek(at + steps) }, icon(shape));
  const bar = el("div", { class: "bar" }, play, by(-1, "one step back", ICONS.back), by(1, "one step on", ICONS.on), slider, el("label", { class: "row" }, "speed", speeds), output);
  const box = el("div", { class: "player", role: "group", "aria-label": "player", keydown: pressed }, bar);

  function show() {
    const step = Math.floor(at);
    slider.value = String(step);
    const time = rate ? `, ${(step / rate).toFixed(2)} s` : "";
    output.textContent = `step ${step.toLocaleString("en-US")} of ${length.toLocaleString("en-US")}${time}`;
    slider.setAttribute("aria-valuetext", output.textContent);
    moved(step, playing);
  }

  function seek(step) {
    pause();
    at = Math.max(0, Math.min(length - 1, Math.floor(step)));
    show();
  }

  function toggle() {
    if (playing) return seek(at);
    if (at >= length - 1) at = 0;
    playing = true;
    before = null;
    label();
    show();
    requestAnimationFrame(tick);
  }

  function tick(now) {
    if (!playing) return;
    const seconds = before === null ? 0 : Math.min(LONGEST_WAIT, (now - before) / 1000);
    before = now;
    const shown = Math.floor(at);
    at = Math.min(length - 1, at + seconds * speed * (rate ?? USUAL_RATE));
    if (at >= length - 1) seek(at);
    else {
      if (Math.floor(at) !== shown) show();
      requestAnimationFrame(tick);
    }
  }

  function pause() {
    playing = false;
    label();
  }

  function label() {
    play.replaceChildren(icon(playing ? ICONS.pause : ICONS.play), playing ? "Pause" : "Play");
  }

  // Buttons and lists have the space bar for themselves, and the slider has the arrows.
  function pressed(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === " " && !event.target.closest("button, select, summary")) toggle();
    else if (steps && !event.target.closest("input, select")) seek(at + steps);
    else return;
    event.preventDefault();
  }

  function reset(steps, perSecond) {
    [length, rate] = [steps, perSecond];
    slider.max = String(length - 1);
    seek(0);
  }
  return { box, bar, reset, step: () => Math.floor(at) };
}
