// Elements, numbers, tables, charts and the theme. All text of the data becomes text nodes, never HTML.
const data = JSON.parse(document.getElementById("data").textContent);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  assign(node, attributes);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function assign(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  assign(node, attributes);
  node.append(...children);
  return node;
}

function show(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-3) return value.toExponential(digits - 1);
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString("en-US", { maximumFractionDigits: Math.min(places, 8) });
}

function percent(share) {
  if (share === null || share === undefined) return "–";
  const value = share * 100;
  if (value === 0 || value === 100) return `${value}%`;
  return value < 0.1 ? "<0.1%" : value > 99.9 ? ">99.9%" : `${Number(value.toFixed(1))}%`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (count >= 1024 && place < units.length - 1) {
    count /= 1024;
    place += 1;
  }
  return `${place ? count.toFixed(1) : count} ${units[place]}`;
}

// A name that breaks before its parts, if it must.
function breakable(name) {
  return name.split(/(?=[[.])/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));
}

function plural(count, noun) {
  return `${show(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function section(id, title, ...children) {
  document.getElementById("contents").append(el("li", {}, el("a", { href: `#${id}` }, title)));
  const node = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...children);
  document.getElementById("main").append(node);
  return node;
}

function cards(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined);
  return el("div", { class: "cards" }, shown.map(([name, value]) =>
    el("div", {}, el("div", { class: "name" }, name), el("div", { class: "value" }, value))));
}

// Cells are text, numbers (aligned right) or nodes.
function cell(value, tag = "td", attributes = {}) {
  if (value instanceof Node) return el(tag, attributes, value);
  if (typeof value === "number") return el(tag, { class: "number", ...attributes }, show(value));
  // Percentages are numbers, too.
  if (/^[<>]?[\d.]+%$/.test(value)) return el(tag, { class: "number", ...attributes }, value);
  return el(tag, { class: "text", ...attributes }, value === null || value === undefined ? "–" : value);
}

function scrolled(label, table, tall = false) {
  return el("div", { class: tall ? "scroll tall" : "scroll", role: "region", "aria-label": label, tabindex: 0 }, table);
}

function plainTable(label, headers, rows, tall = false) {
  const numeric = headers.map((_, i) => rows.some((row) => typeof row[i] === "number" || /^[<>]?[\d.]+%$/.test(row[i])));
  return scrolled(label, named(el("table", { class: "plain" },
    el("thead", {}, el("tr", {}, headers.map((name, i) => el("th", { scope: "col", class: numeric[i] ? "number" : null }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value, i) => (i ? cell(value) : cell(value, "th", { scope: "row" })))))))),
  tall);
}

// Gives each cell the name of its column: a narrow page shows a row as a list of names and values.
function named(table) {
  const names = [...table.tHead.rows[0].cells].map((each) => each.textContent);
  for (const row of table.tBodies[0].rows) [...row.cells].forEach((each, i) => { each.dataset.name = names[i]; });
  return table;
}

// A part of a section that is closed until somebody opens it, or prints the page.
function folded(title, ...children) {
  return el("details", { class: "facts" }, el("summary", {}, title), ...children);
}

// Header of a table whose columns sort. `columns` have `name`, `key` (a function of a row; none: not sortable), `number`.
function sortableHead(columns, state, changed) {
  return el("tr", {}, columns.map((column) => {
    if (!column.key) return el("th", { scope: "col" }, column.name);
    const sorted = state.column === column ? (state.down ? "descending" : "ascending") : "none";
    return el("th", { scope: "col", "aria-sort": sorted, title: column.title, class: column.number ? "number" : null },
      el("button", { type: "button", click: () => {
        state.down = state.column === column ? !state.down : Boolean(column.number);
        state.column = column;
        changed(column);
      } }, column.name));
  }));
}

// Missing values are last in both orders.
function sorted(rows, state) {
  if (!state.column) return rows;
  const key = state.column.key;
  const sign = state.down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    const [noX, noY] = [x === null || x === undefined, y === null || y === undefined];
    if (noX || noY) return noX - noY;
    return sign * (typeof x === "string" || typeof y === "string" ? String(x).localeCompare(String(y)) : x - y);
  });
}

let statusTimer = 0;
function announce(text) {
  const node = document.getElementById("status");
  node.textContent = text;
  node.classList.add("shown");
  clearTimeout(statusTimer);
  statusTimer = setTimeout(() => node.classList.remove("shown"), 2500);
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Frames of notebooks may have no clipboard.
    const area = el("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  announce("Copied");
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
