"use strict";
// What all pages with figures share: small helpers, figures by Plotly in the colours of the page, tables that sort.

/** @type {(id: string) => PageElement} */
const $ = id => document.getElementById(id);
/** @type {(text: unknown) => string} */
const plain = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // for Plotly
/** @type {(number: number) => string} */
const colour = number => Look.shade(Look.colours[number % Look.colours.length]);
/** @type {(hex: string, alpha?: number) => string} */
const faint = (hex, alpha = 0.18) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
/** @type {(x: Known | undefined, digits?: number) => string} */
const sig = (x, digits = 3) => x === null || x === undefined ? "–"
  : x !== 0 && Math.abs(x) < 1e-4 ? x.toExponential(digits - 1) : Math.abs(x) >= 10 ** digits ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(digits)));
/** @type {(values: Values) => number[]} */
const finite = values => values.filter(value => value !== null);
/** @template {keyof HTMLElementTagNameMap} Tag @param {Tag} tag @param {Record<string, any>} options @param {(Node | string)[]} children */
function element(tag, options = {}, ...children) {
  const { dataset, ...rest } = options;
  const made = Object.assign(document.createElement(tag), rest);
  Object.assign(made.dataset, dataset);
  made.append(...children);
  return made;
}

// ---- figures
/** @param {string} id @param {Trace[]} traces @param {Layout} options */
function draw(id, traces, options = {}) {
  const { axis, ...look } = Look.layout();
  const figure = $(id), narrow = innerWidth < 700;
  /** @type {Layout} */
  const layout = { ...look, height: 340, margin: { l: narrow ? 52 : 64, r: 12, t: 12, b: 42 }, hovermode: "closest",
    width: figure.clientWidth,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal", font: { size: 12 } }, showlegend: traces.length > 1, uirevision: "keep",
    ...options };
  for (const name of ["xaxis", "yaxis", ...Object.keys(options).filter(key => /^[xy]axis/.test(key))])
    layout[name] = { ...axis, automargin: true, exponentformat: "power", ...ticks(options[name]), ...options[name] };
  if (figure.layout && figure.layout.width !== layout.width) Plotly.purge(figure); // or its legend stays where it was
  Plotly.react(figure, traces, layout, { displaylogo: false, showSendToCloud: false, displayModeBar: narrow || options.dragmode === false ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"] }); // each is a stop for the Tab key
}
// Ticks of a logarithmic axis: decades if there are several, otherwise also numbers between them.
/** @param {Layout | undefined} axis */
function ticks(axis) {
  if (axis?.type !== "log" || axis.tickvals || !axis.range) return {};
  if (Math.abs(axis.range[1] - axis.range[0]) > 2.2) return { dtick: 1 };
  const decades = Array.from({ length: 30 }, (_, i) => 10 ** (i - 20));
  const span = Math.abs(axis.range[1] - axis.range[0]);
  const digits = span > 0.8 ? [1, 2, 5] : span > 0.4 ? [1, 1.5, 2, 3, 5, 7] : [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
  const tickvals = decades.flatMap(decade => digits.map(digit => Number((digit * decade).toPrecision(3))));
  return { tickangle: 0, tickvals, ticktext: tickvals.map(value => value < 1e-4 || value >= 1e5 ? value.toExponential() : String(value)) };
}
/** @type {(x: Values, y: Values, name: string, shade: string, extra?: Trace) => Trace} */
const line = (x, y, name, shade, extra = {}) => ({ x, y, name: plain(name), mode: "lines", type: "scatter",
  line: { color: shade, width: 2, ...extra.line }, hovertemplate: "step %{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
  ...Object.fromEntries(Object.entries(extra).filter(([key]) => key !== "line")) });
/** @param {Values} x @param {Values} low @param {Values} high @param {string} shade @param {string} name @returns {Trace[]} */
function band(x, low, high, shade, name, extra = {}) {
  const edge = { mode: "lines", type: "scatter", line: { width: 0 }, hoverinfo: "skip", ...extra };
  return [{ ...edge, x, y: low, showlegend: false },
    { ...edge, x, y: high, fill: "tonexty", fillcolor: faint(shade), name: plain(name) }];
}
// The range of a logarithmic axis that contains its lines, and bands unless they are five decades below.
/** @param {Values[]} lines @param {Values[]} bands */
function logRange(lines, bands = []) {
  const positive = (/** @type {Values[]} */ lists) => finite(lists.flat()).filter(value => value > 0);
  const high = positive([...lines, ...bands]).reduce((a, b) => Math.max(a, b), 0);
  if (!high) return undefined;
  const deepest = positive(bands).reduce((a, b) => Math.min(a, b), high);
  const low = positive(lines).reduce((a, b) => Math.min(a, b), Math.max(deepest, high / 1e5));
  return [Math.log10(low / 1.3), Math.log10(high * 1.3)];
}
/** @type {(id: string, text: string) => void} */
const empty = (id, text) => { Plotly.purge($(id)); $(id).replaceChildren(element("p", {}, text)); };

// A table that its headings sort. Columns are { key, label, help, value, cell, first }: what sorts a row, what its cell shows, and the
// direction of the first click, 1 for upwards. `sort` is [key, direction] and is changed, `again` redraws the table, `inside` are the
// rows below a row, unsorted.
/** @template Row @param {HTMLElement} table @param {Column<Row>[]} columns @param {Row[]} rows @param {[string, number]} sort @param {() => void} again @param {(row: Row) => Row[]} inside */
function drawRows(table, columns, rows, sort, again, inside = () => []) {
  const by = columns.find(column => column.key === sort[0]);
  const ranked = !by ? rows : [...rows].sort((a, b) => {
    const [x, y] = [by.value(a), by.value(b)];
    if (x === null || y === null) return Number(x === null) - Number(y === null); // unknown values last in both directions
    return sort[1] * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
  });
  const heads = columns.map(({ key, label, help = "", first = -1 }) => {
    const mark = sort[0] === key ? (sort[1] > 0 ? " ▲" : " ▼") : "";
    const press = () => {
      Object.assign(sort, [key, sort[0] === key ? -sort[1] : first]);
      again();
      table.querySelector(`[data-sort="${key}"]`).focus();
    };
    const head = element("th", { scope: "col", title: help }, element("button", { type: "button", dataset: { sort: key }, onclick: press }, label + mark));
    head.setAttribute("aria-sort", !mark ? "none" : sort[1] > 0 ? "ascending" : "descending");
    return head;
  });
  const body = ranked.flatMap(row => [row, ...inside(row)]).map(row => element("tr", {}, ...columns.map(column => {
    const cell = column.cell(row);
    cell.dataset.label = column.label;
    return cell;
  })));
  const focused = table.contains(document.activeElement) ? document.activeElement?.textContent : null;
  table.replaceChildren(element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
  if (focused) [...table.querySelectorAll("button")].find(button => button.textContent === focused)?.focus();
}

/** @param {() => void} redraw */
function onResize(redraw) { // once the window has come to rest
  let width = innerWidth, later = 0;
  addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(() => { if (width !== innerWidth) redraw(); width = innerWidth; }, 100);
  });
}
