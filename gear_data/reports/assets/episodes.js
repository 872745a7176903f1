// The episode table: sorting, filtering, selecting, and the selection as --where.
const PAGE_ROWS = 50;
const LEVELS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

function sparkline(text, id) {
  if (!text) return "–";
  const points = [...text].map((letter, i) => `${((i / Math.max(1, text.length - 1)) * 92 + 1).toFixed(1)},${(21 - (LEVELS.indexOf(letter) / 61) * 19).toFixed(1)}`);
  return svg("svg", { class: "spark", width: 94, height: 22, viewBox: "0 0 94 22", role: "img", "aria-label": `rewards of episode ${id}` }, svg("polyline", { points: points.join(" ") }));
}

function quoteSql(text) {
  return `'${text.replaceAll("'", "''")}'`;
}

function quoteShell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// Ids as SQL: runs of three and more as BETWEEN.
function idsSql(ids) {
  const ordered = [...ids].sort((a, b) => a - b);
  const parts = [];
  const single = [];
  for (let i = 0; i < ordered.length; ) {
    let j = i;
    while (j + 1 < ordered.length && ordered[j + 1] === ordered[j] + 1) j += 1;
    if (j - i >= 2) parts.push(`episode_id BETWEEN ${ordered[i]} AND ${ordered[j]}`);
    else single.push(...ordered.slice(i, j + 1));
    i = j + 1;
  }
  if (single.length === 1) parts.push(`episode_id = ${single[0]}`);
  else if (single.length) parts.push(`episode_id IN (${single.join(", ")})`);
  return parts.join(" OR ");
}

function episodes() {
  const t = data.table;
  const groupings = Object.keys(data.groups);
  const measures = Object.keys(t.measures);
  const rewarded = t.return.some((value) => value !== null);
  const rows = t.id.map((_, i) => i);
  const chosen = new Set();
  const viewable = new Set(data.viewer.episodes.map((episode) => episode.id));
  const filters = { returnMin: null, returnMax: null, lengthMin: null, lengthMax: null, end: "", outlier: "", ...Object.fromEntries(groupings.map((name) => [name, ""])) };
  const state = { column: null, down: false };
  let page = 0;

  const end = (i) => [t.terminated[i] ? "terminated" : null, t.truncated[i] ? "truncated" : null].filter(Boolean).join(", ") || "–";
  const columns = [
    { name: "episode", key: (i) => t.id[i], number: true },
    ...(rewarded ? [{ name: "return", key: (i) => t.return[i], number: true }] : []),
    { name: "length", key: (i) => t.length[i], number: true },
    { name: "end", key: end },
    ...(t.success ? [{ name: "success", key: (i) => t.success[i], number: true }] : []),
    ...groupings.map((name) => ({ name, key: (i) => data.groups[name].names[t[name][i]] })),
    ...(rewarded ? [{ name: "rewards" }] : []),
    ...measures.map((name) => ({ name, key: (i) => t.measures[name][i], number: true, title: MEASURES[name] })),
    { name: "outlier by", key: (i) => t.outlier[i].join(", ") || null },
    ...(viewable.size ? [{ name: "view" }] : []),
  ];

  function passes(i) {
    const within = (value, low, high) => (low === null && high === null) || (value !== null && (low === null || value >= low) && (high === null || value <= high));
    return within(t.return[i], filters.returnMin, filters.returnMax) && within(t.length[i], filters.lengthMin, filters.lengthMax)
      && (!filters.end || t[filters.end][i] === 1)
      && (!filters.outlier || (filters.outlier === "none" ? !t.outlier[i].length : filters.outlier === "any" ? t.outlier[i].length : t.outlier[i].includes(filters.outlier)))
      && groupings.every((name) => filters[name] === "" || t[name][i] === Number(filters[name]));
  }

  // The filters as SQL; null if SQL over the episode table cannot say them.
  function filterSql() {
    const parts = [];
    for (const [column, low, high] of [["return", filters.returnMin, filters.returnMax], ["length", filters.lengthMin, filters.lengthMax]]) {
      if (low !== null) parts.push(`${column} >= ${low}`);
      if (high !== null) parts.push(`${column} <= ${high}`);
      // NaN is larger than any number there.
      if (column === "return" && low !== null && high === null && t.return.includes(null)) parts.push("return < 1e308");
    }
    if (filters.end) parts.push(filters.end);
    for (const name of groupings) {
      if (filters[name] === "") continue;
      const place = Number(filters[name]);
      const group = data.groups[name];
      if (place === group.other) return null;
      parts.push(place === group.none ? `${name} IS NULL` : `${name} = ${quoteSql(group.names[place])}`);
    }
    return filters.outlier ? null : parts.join(" AND ");
  }

  function where(found) {
    if (chosen.size) return idsSql([...chosen]);
    const text = filterSql();
    return text === null ? idsSql(found.map((i) => t.id[i])) : text;
  }

  const body = el("tbody");
  const head = el("thead");
  const count = el("p", { class: "soft", id: "episode-count", role: "status" });
  const output = el("textarea", { id: "where", readonly: true, rows: 2, "aria-label": "The selection as --where" });
  const copy = el("button", { type: "button", class: "main", id: "copy-where", click: () => copyText(output.value) }, "Copy --where");
  const previous = el("button", { type: "button", click: () => { page -= 1; update(); } }, "Previous");
  const next = el("button", { type: "button", click: () => { page += 1; update(); } }, "Next");
  const pageText = el("span", { class: "soft" });

  function row(i) {
    const id = t.id[i];
    const box = el("input", { type: "checkbox", "aria-label": `select episode ${id}`, change: () => { if (box.checked) chosen.add(id); else chosen.delete(id); update(false); } });
    box.checked = chosen.has(id);
    return el("tr", { "data-episode": id }, el("td", {}, box), cell(id, "th", { scope: "row" }), rewarded ? cell(t.return[i], "td", { class: "number" }) : null, cell(t.length[i]), cell(end(i)),
      t.success ? cell(t.success[i] === null ? "–" : t.success[i] ? "yes" : "no") : null,
      groupings.map((name) => cell(data.groups[name].names[t[name][i]])),
      rewarded ? cell(sparkline(t.spark[i], id)) : null,
      measures.map((name) => cell(name === "idle" ? percent(t.measures[name][i]) : t.measures[name][i], "td", { class: "number" })),
      el("td", {}, t.outlier[i].map((name) => el("span", { class: "badge" }, name))),
      viewable.size ? el("td", {}, viewable.has(id) ? el("button", { type: "button", click: () => { view(id); document.getElementById("viewer").scrollIntoView(); }, "aria-label": `view episode ${id}` }, "View") : "") : null);
  }

  function update(all = true) {
    const found = rows.filter(passes);
    const pages = Math.max(1, Math.ceil(found.length / PAGE_ROWS));
    page = Math.min(Math.max(0, page), pages - 1);
    if (all) {
      const focused = head.contains(document.activeElement) ? [...head.querySelectorAll("button")].indexOf(document.activeElement) : -1;
      const labels = sortableHead(columns, state, () => { page = 0; update(); });
      labels.prepend(el("th", { scope: "col" }, "select"));
      head.replaceChildren(labels);
      if (focused >= 0) head.querySelectorAll("button")[focused].focus();
      body.replaceChildren(...sorted(found, state).slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS).map(row));
    }
    const active = Object.values(filters).some((value) => value !== "" && value !== null);
    count.textContent = `${plural(found.length, "episode")}${active ? ` of ${show(rows.length)} pass the filters` : ""}${chosen.size ? `; ${show(chosen.size)} selected` : ""}.`;
    const text = active || chosen.size ? where(found) : "";
    output.value = text ? `--where ${quoteShell(text)}` : "";
    output.placeholder = "Filter the table or select rows: this shows the selection for gear-data's --where.";
    copy.disabled = !text;
    if (all) named(body.parentNode);
    previous.disabled = page === 0;
    next.disabled = page >= pages - 1;
    pageText.textContent = `page ${page + 1} of ${pages}`;
  }

  const bound = (label, name) => el("label", {}, label, el("input", { type: "number", step: "any", id: `filter-${name}`, input: (event) => {
    filters[name] = event.target.value === "" ? null : Number(event.target.value);
    page = 0;
    update();
  } }));
  const choice = (label, name, options) => el("label", {}, label, el("select", { id: `filter-${name}`, change: (event) => { filters[name] = event.target.value; page = 0; update(); } },
    options.map(([value, text]) => el("option", { value }, text))));
  const clear = el("button", { type: "button", id: "clear-filters", click: () => {
    for (const name of Object.keys(filters)) filters[name] = name.endsWith("Min") || name.endsWith("Max") ? null : "";
    controls.querySelectorAll("input, select").forEach((input) => { input.value = ""; });
    chosen.clear();
    update();
  } }, "Clear");
  const controls = el("div", { class: "controls" },
    rewarded ? [bound("return from", "returnMin"), bound("to", "returnMax")] : null, bound("length from", "lengthMin"), bound("to", "lengthMax"),
    choice("end", "end", [["", "any"], ["terminated", "terminated"], ["truncated", "truncated"]]),
    groupings.map((name) => choice(name, name, [["", "any"], ...data.groups[name].names.map((each, i) => [i, each])])),
    choice("outlier", "outlier", [["", "any"], ["any", "outliers"], ["none", "no outliers"], ...data.outliers.map((each) => each.measure).map((name) => [name, `by ${name}`])]),
    el("button", { type: "button", id: "select-shown", click: () => { rows.filter(passes).forEach((i) => chosen.add(t.id[i])); update(); } }, "Select these"), clear);

  section("episodes", "Episodes",
    t.id.length < t.total ? el("p", { class: "notice" }, `The table has ${show(t.id.length)} of ${show(t.total)} episodes: outliers, and others in equal distances. Filters by return, length, end and group hold for all episodes in --where; lists of ids only for these.`) : null,
    controls, count, el("div", { class: "where" }, output, copy),
    scrolled("Episodes", el("table", { id: "episode-table", class: "dense" }, head, body)),
    el("div", { class: "controls" }, previous, pageText, next));
  update();
}
