"use strict";
// The page of runs, with data in the layout of gyroscope/report/run_data.py: its tables, its words, and what the reader chooses.
// Python writes every number and name. Here they are arranged, sorted and opened.
const SEVERITY = { bad: "✗ Bad", warn: "! Warning", note: "• Note", good: "✓ Good" };
const SHOWN_FINDINGS = 3; // the others are folded
/** @type {PageState} */
const state = { report: /** @type {any} */ (null), live: null, run: 0, layer: "", quantity: "angular_update", look: -1,
  series: [], sort: ["", 1], filter: "", open: new Set(), spoken: "" };
const several = () => state.report.runs.length > 1;
/** @type {(number: number) => string} */
const runColour = number => colour(state.report.runs[number].colour);
const current = () => state.report.runs[state.run];
/** @type {(run: RunData, name: string) => LayerData} */
const layerOf = (run, name) => /** @type {LayerData} */ (run.layers.find(layer => layer.name === name));
/** @type {(number: number) => HTMLElement} */
const swatch = number => { const one = element("span", { className: "swatch" }); one.style.background = runColour(number); return one; };
/** @type {(title: string) => string} */
const heading = title => title.replaceAll("-\n", "").replaceAll("\n", " ");

// ---- runs
function drawRuns() {
  const { header, helps, rows } = state.report.table;
  /** @type {(cell: string, number: number) => HTMLElement} */
  const name = (cell, number) => element("td", {}, swatch(number), several() ? element("button", { type: "button", className: "name", onclick: () => choose(number) }, cell) : cell);
  const body = rows.map((cells, number) => {
    const row = element("tr", {}, ...cells.map((cell, place) => place ? element("td", { title: helps[place] }, cell) : name(cell, number)));
    row.setAttribute("aria-selected", String(several() && number === state.run));
    row.dataset.status = state.report.runs[number].status;
    [...row.children].forEach((cell, place) => { /** @type {HTMLElement} */ (cell).dataset.label = header[place]; });
    return row;
  });
  const heads = header.map((title, place) => element("th", { scope: "col", title: helps[place] }, title));
  $("runs-table").replaceChildren(element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
  const words = [...(several() ? [swatch(state.run), element("strong", {}, current().name + ": ")] : []), current().summary.join(" ")];
  $("summary").replaceChildren(element("p", { className: "summary" }, ...words));
}

// ---- findings
/** @param {FindingData} finding */
function findingItem(finding) {
  const shown = finding.layers.filter(name => layerOf(current(), name)); // a comparison leaves some out
  const names = shown.slice(0, 6).flatMap(name => [" ", chip(layerOf(current(), name))]);
  const rest = shown.length > 6 ? ` and ${shown.length - 6} more` : "";
  return element("li", { className: finding.severity }, element("b", {}, SEVERITY[finding.severity]),
    element("span", {}, finding.sentence), ...(finding.remedy ? [element("span", {}, "→ " + finding.remedy)] : []),
    ...(finding.trial ? [element("span", { className: "more" }, `Tested on real training: ${finding.trial} in results/`)] : []),
    ...(names.length ? [element("span", { className: "more" }, "Open", ...names, rest)] : []));
}
function drawFindings() {
  const { name, findings } = current(), text = JSON.stringify([name, findings]);
  if (text === state.spoken) return; // or a reader's open fold would close
  state.spoken = text;
  const items = findings.map(findingItem), rest = items.slice(SHOWN_FINDINGS);
  const more = rest.length ? [element("details", {}, element("summary", {}, `${rest.length} more`), element("ul", {}, ...rest))] : [];
  $("findings-title").textContent = `Findings (${findings.length})`;
  $("findings-body").replaceChildren(element("ul", {}, ...(items.length ? items.slice(0, SHOWN_FINDINGS) : [element("li", { className: "note" }, "No findings yet.")])), ...more);
}
/** @type {(layer: LayerData) => HTMLElement} */
const chip = layer => element("button", { type: "button", className: "chip", title: layer.name, onclick: () => openLayer(layer.name) }, layer.label);

// ---- layers
const MOST_LINES = 40, LINE = 4, LEAST = 14; // lines of the map in one row of the table, and pixels of a line and of the whole row
/** A line for each layer. Colours are those of the style sheet, so they change with the theme. @param {string[]} names */
function strip(names) {
  const every = Math.ceil(names.length / MOST_LINES), lines = names.filter((_, i) => i % every === 0), height = Math.max(LINE, LEAST / lines.length);
  const one = element("div", { className: "strip" });
  one.style.height = `${height * lines.length}px`;
  one.style.background = lines.map((name, place) => {
    const stops = layerOf(current(), name).ratios.map(ratio => ratio === null ? "transparent"
      : `color-mix(in srgb, var(--${ratio < 0 ? "slow" : "fast"}) ${Math.round(50 * Math.min(2, Math.abs(ratio)))}%, var(--middle))`);
    // A gradient needs two colours.
    return `linear-gradient(to right, ${[...stops, stops.at(-1)].join(", ")}) 0 ${height * place}px / 100% ${height}px no-repeat`;
  }).join(", ");
  return one;
}
/** @param {TableRow} row */
function nameCell({ row, key, isMember }) {
  if (row.layers.length === 1) return element("td", { className: isMember ? "member" : "" }, element("button", { type: "button", className: "name", title: row.layers[0], onclick: () => openLayer(row.layers[0]) }, row.cells[0]));
  const isOpen = state.open.has(key), button = element("button", { type: "button", className: "family", onclick: () => {
    state.open[isOpen ? "delete" : "add"](key);
    drawTable();
  } }, row.cells[0]);
  button.setAttribute("aria-expanded", String(isOpen));
  const named = current().table.header.at(-1) === "worst" && row.cells.at(-1);
  return element("td", {}, button, ...(named ? [element("small", {}, "worst: " + named)] : []));
}
function drawTable() {
  const run = current(), { header, helps, rows } = run.table, wanted = state.filter.toLowerCase();
  /** @type {(row: LayerRow, isMember: boolean) => TableRow} */
  const tableRow = (row, isMember) => ({ row, isMember, key: `${row.cells[0]} ${row.layers[0]}` });
  /** @type {(row: LayerRow) => TableRow[]} */
  const members = row => (row.members.length ? row.members : [row]).map(member => tableRow(member, row.members.length > 0));
  const shown = wanted ? rows.flatMap(members).filter(({ row }) => row.layers[0].toLowerCase().includes(wanted)) : rows.map(row => tableRow(row, false));
  if (!state.sort[0]) shown.sort((a, b) => (b.row.distance ?? 0) - (a.row.distance ?? 0)); // worst first
  /** @type {Column<TableRow>[]} */
  const columns = header.flatMap((title, place) => title === "worst" ? [] : [{ key: String(place), label: heading(title), help: helps[place], first: place && rows.some(row => row.values[place] !== null) ? -1 : 1,
    value: ({ row }) => row.values[place] ?? row.cells[place],
    cell: own => place ? element("td", { className: own.row.off.includes(place) ? "off" : "", dataset: { key: place } }, own.row.cells[place]) : nameCell(own) }]);
  columns.splice(1, 0, { key: "map", label: "map", help: "rotation over that of the forecast, from the first step to the last, a line for each layer. Blue is slower, orange faster", value: ({ row }) => row.distance,
    cell: ({ row }) => element("td", { className: "map", onclick: () => openLayer(row.layers[0]) }, strip(row.layers)) });
  drawRows($("layers-table"), columns, shown, state.sort, drawTable, own => !wanted && own.row.members.length && state.open.has(own.key) ? members(own.row) : []);
  const count = shown.reduce((sum, { row }) => sum + row.layers.length, 0);
  $("layers-count").textContent = count === run.layers.length ? `(${count})` : `(${count} of ${run.layers.length})`;
  $("layers-note").textContent = run.layers.some(layer => layer.summary.reference !== "forecast") ? "*: over equilibrium, because the run has no forecast." : "";
}

// ---- settings and measurement notes
function drawConfig() {
  const opened = [...$("config").querySelectorAll("details")].map(one => one.open);
  $("config").replaceChildren(...state.report.runs.map((run, number) => {
    const read = run.stride > 1 ? [`The page shows every ${run.stride}th of ${run.total.toLocaleString("en")} samples.`] : [];
    const rules = [...new Set(run.groups.filter(group => group.layers).map(group => group.rule))];
    const notes = [...rules, ...run.notes, ...read, ...(number || !state.report.left_out ? [] : [state.report.left_out])];
    return element("details", { open: opened[number] ?? false }, element("summary", {}, several() ? swatch(number) : "", `Settings and measurement notes of ${run.name}`),
      ...notes.map(note => element("p", { className: "note" }, note)), element("pre", {}, JSON.stringify(run.config, null, 2)));
  }));
}

/** @type {() => NodeListOf<HTMLSelectElement>} */
const runChoices = () => document.querySelectorAll("select.run");
/** @param {number} number */
function choose(number) {
  state.run = number; state.look = -1;
  for (const select of runChoices()) select.value = String(number);
  drawWords();
  if (state.layer) openLayer(state.layer, false);
}
function drawFigures() {
  drawLogged(); drawRotation();
  if (state.layer) openLayer(state.layer, false);
}
function drawWords() { drawRuns(); drawTable(); drawFindings(); }
function fillChoices() {
  for (const select of runChoices()) {
    select.replaceChildren(...state.report.runs.map((run, number) => element("option", { value: number }, run.name)));
    select.value = String(state.run);
    if (select.parentElement) select.parentElement.hidden = !several();
  }
}
/** @type {(event: Event) => string} */
const chosenIn = event => /** @type {HTMLInputElement} */ (event.target).value;
function listen() {
  for (const select of runChoices()) select.addEventListener("change", event => choose(Number(chosenIn(event))));
  $("filter").addEventListener("input", event => { state.filter = chosenIn(event); drawTable(); });
  $("look-step").addEventListener("input", event => { state.look = Number(chosenIn(event)); drawLook(); });
  $("look-quantity").addEventListener("change", event => { state.quantity = chosenIn(event); drawLook(); });
  Look.listeners.push(() => { drawRuns(); drawFigures(); }); // at once, because a printer does not wait
  onResize(drawFigures);
}
/** @param {Report} report @param {LiveData | null} live */
function show(report, live = null) {
  const begun = state.report !== null, chosen = begun ? current() : null;
  Object.assign(state, { report, live });
  // The order of runs may have changed since.
  state.run = Math.max(0, report.runs.findIndex(run => run.id === chosen?.id && run.name === chosen.name));
  fillChoices();
  drawWords(); drawConfig(); drawFigures();
  if (!begun) listen();
  document.body.dataset.ready = "yes";
}
const Gyroscope = { show, state };
