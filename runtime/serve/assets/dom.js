// Elements, tables and texts. All content is set as text, never as markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function code(text) {
  return h("code", {}, text);
}

export function badge(text, mark) {
  return h("span", { class: "badge", "data-mark": mark }, text);
}

// A text in which parts between backticks are code.
export function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? code(part) : part));
}

export function lead(text) {
  return h("p", { class: "lead" }, prose(text));
}

export function note(text, mark) {
  return h("p", { class: "note", "data-mark": mark }, mark ? text : prose(text));
}

export function tile(name, value, detail, mark) {
  return h("li", { class: "tile", "data-mark": mark },
    h("p", { class: "name" }, name), h("p", { class: "value" }, value), h("p", { class: "detail" }, detail ?? "\u00a0"));
}

export function field(label, control, wide) {
  return h("div", { class: wide ? "field wide" : "field" }, h("label", { for: control.id }, label), control);
}

// A select of [value, text] pairs.
export function choice(id, options, value, onchange) {
  const select = h("select", { id, onchange: (event) => onchange(event.target.value) },
    options.map(([option, text]) => h("option", { value: option }, text)));
  select.value = value;
  return select;
}

// Rows of a table that are shown at once.
const MAX_ROWS = 30;

// Columns: {label, cell(row), sort(row)?, number?, tight?}. Columns with `sort` can be sorted by their header.
export function table(caption, columns, rows, options = {}) {
  const body = h("tbody");
  let limit = options.limit ?? MAX_ROWS;
  let order = rows;
  const more = h("p", { class: "more" }, h("button", { type: "button", class: "button", onclick: () => { limit = rows.length; fill(order); } }, `Show all ${rows.length}`));
  const fill = (sorted) => {
    order = sorted;
    more.hidden = rows.length <= limit;
    body.replaceChildren(...sorted.slice(0, limit).map((row) =>
      h("tr", { "data-mark": options.mark?.(row) }, columns.map((column) =>
        h("td", { class: cellClass(column) }, column.cell(row) ?? "–")))));
  };
  const heads = columns.map((column) => {
    if (!column.sort) return h("th", { scope: "col", class: cellClass(column) }, column.label);
    const head = h("th", { scope: "col", class: cellClass(column) });
    head.append(h("button", { type: "button", onclick: () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      fill([...rows].sort((a, b) => compare(column.sort(a), column.sort(b)) * (down ? -1 : 1)));
    } }, column.label));
    return head;
  });
  fill(rows);
  const head = caption === null ? null : h("caption", {}, caption, options.counted === false ? null : h("span", { class: "muted" }, ` ${rows.length}`));
  return h("div", { class: "scroll" }, h("table", { class: options.class }, head, h("thead", {}, h("tr", {}, heads)), body), more);
}

function cellClass(column) {
  return column.number ? "number" : column.tight ? "tight" : null;
}

export function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? ""));
}

export function share(part) {
  const fill = h("div", { class: "fill" });
  fill.style.width = `${(100 * part).toFixed(1)}%`;
  return h("div", { class: "share" }, h("div", { class: "track" }, fill), h("span", { class: "text" }, `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`));
}

const DURATIONS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

export function duration(ns) {
  if (ns === null || ns === undefined) return "–";
  const [unit, name] = DURATIONS.find(([unit]) => ns >= unit) ?? DURATIONS[3];
  return `${significant(ns / unit)} ${name}`;
}

export function significant(value) {
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { minimumFractionDigits: Math.min(digits, 2), maximumFractionDigits: Math.min(digits, 2) });
}

export function count(value) {
  if (value < 1e5) return Math.round(value).toLocaleString("en");
  const [unit, name] = value >= 1e9 ? [1e9, "G"] : value >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return `${significant(value / unit)} ${name}`;
}

export function rate(value) {
  return `${value < 10 && value > 0 ? significant(value) : count(value)}/s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 ? value : significant(value)} ${units[unit]}`;
}

export function age(seconds) {
  if (seconds < 120) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// The sizes of an axis: 64, ≤ 16, 17–64 or ≥ 65.
export function sizes(axis) {
  if (axis.high === null) return `≥ ${axis.low}`;
  if (axis.low === axis.high) return String(axis.low);
  return axis.low <= 1 ? `≤ ${axis.high}` : `${axis.low}–${axis.high}`;
}
