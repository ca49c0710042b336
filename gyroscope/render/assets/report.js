"use strict";
// The page of runs, with data in the layout of gyroscope/report/run_data.py: its words, its table, and live updates.
const SEVERITY = { bad: "✗ Bad", warn: "! Warning", note: "• Note", good: "✓ Good" };
/** @type {[SummaryNumber, string][]} */
const SUMMARY = [["rotation", "rotation"], ["rotation_ratio", "÷ predicted"], ["norm", "norm"], ["norm_ratio", "÷ predicted"],
  ["decay_ratio", "λₑ/λ"], ["alignment", "s"], ["imbalance", "spread ÷ noise"], ["dead_vectors", "dead"], ["frozen_share", "frozen"], ["settled_at", "settled at"]];
/** @type {PageState} */
const state = { report: /** @type {any} */ (null), live: null, run: 0, layer: "", quantity: "angular_update", look: -1,
  series: [], sort: ["", 1], filter: "", open: new Set(), spoken: "" };
const several = () => state.report.runs.length > 1;
/** @type {(number: number) => string} */
const runColour = number => colour(state.report.runs[number].colour);
const current = () => state.report.runs[state.run];
/** @type {(run: RunData, name: string) => LayerData} */
const layerOf = (run, name) => /** @type {LayerData} */ (run.layers.find(layer => layer.name === name));

function drawFindings() {
  const text = JSON.stringify([Look.dark, state.report.runs.map(run => [run.name, run.findings, run.notes, run.stride])]);
  if (text === state.spoken) return; // or a screen reader would read it again
  state.spoken = text;
  const blocks = state.report.runs.flatMap((run, number) => {
    const items = run.findings.map(finding => {
      const shown = finding.layers.filter(name => layerOf(run, name)); // a comparison leaves some out
      const names = shown.slice(0, 6).flatMap(name => [" ", chip(layerOf(run, name), number)]);
      const rest = shown.length > 6 ? ` and ${shown.length - 6} more` : "";
      const more = element("span", { className: "more" }, element("a", { href: "#" + finding.panel }, "See the evidence"), names.length ? ":" : "", ...names, rest);
      return element("li", { className: finding.severity }, element("b", {}, SEVERITY[finding.severity]),
        element("span", {}, finding.sentence), ...(finding.remedy ? [element("span", {}, "→ " + finding.remedy)] : []),
        ...(finding.trial ? [element("span", { className: "more" }, `Tested on real training: ${finding.trial} in results/`)] : []), more);
    });
    const list = element("ul", {}, ...(items.length ? items : [element("li", { className: "note" }, "No findings yet.")]));
    return several() ? [element("h3", {}, swatch(number), run.name + rank(number)), list] : [list];
  });
  const notes = state.report.runs.flatMap(run => [...run.notes, ...(run.stride > 1 ? [`${several() ? run.name + ": " : ""}${run.total.toLocaleString("en")} ` +
    `samples are too many for a page. It shows every ${run.stride}th, ${run.steps.length.toLocaleString("en")} in all.`] : [])]);
  $("findings-body").replaceChildren(...blocks, ...[...new Set(notes)].map(note => element("p", { className: "note" }, note)));
}
/** @type {(number: number) => string} */
const rank = number => number === 0 ? " (fewest findings)" : number === 1 ? " (most findings)" : "";
/** @type {(layer: LayerData, run: number) => HTMLElement} */
const chip = (layer, run) => element("button", { type: "button", className: "chip", title: layer.name, onclick: () => { choose(run); openLayer(layer.name); } }, layer.label);
/** @type {(number: number) => HTMLElement} */
const swatch = number => { const one = element("span", { className: "swatch" }); one.style.background = runColour(number); return one; };

/** @param {string[]} sentences */
const summary = sentences => sentences.length ? [element("p", { className: "summary" }, sentences.join(" "))] : [];
// The numbers at the head of a run, as `str(RunHead)` has them.
/** @param {RunHead} head */
function headline(head) {
  const length = sig(head.run_length, 2);
  const numbers = [head.loss_name && head.loss !== null ? `final ${head.loss_name} ${sig(head.loss, 4)}` : "", head.lr === null ? "" : `learning rate ${sig(head.lr)}`,
    head.weight_decay === null ? "" : `weight decay ${sig(head.weight_decay)}`, head.run_length === null ? "" : `run length ${length} ${length === "1" ? "memory" : "memories"}`];
  return [head.optimizer, `${head.steps.toLocaleString("en")} steps`, ...numbers].filter(Boolean).join(", ");
}
function drawHead() {
  const blocks = state.report.runs.flatMap((run, number) => {
    const alive = run.status === "running";
    const status = element("span", { className: alive ? "live" : "", dataset: { status: run.status } }, run.status);
    const samples = `, ${run.total.toLocaleString("en")} samples up to step ${(run.steps.at(-1) ?? 0).toLocaleString("en")}, ${run.layers.length} layers`;
    const rules = [...new Set(run.groups.filter(group => group.layers).map(group => group.rule))].join("; ");
    const about = element("p", {}, ...(several() ? [swatch(number), element("strong", {}, run.name), ": "] : []),
      element("strong", { className: "headline" }, headline(run.head)), element("br"), status, samples, element("br"), element("code", {}, rules));
    return several() ? [about, ...summary(run.summary)] : [...summary(run.summary), about]; // below the name of its run
  });
  $("about").replaceChildren(...summary(state.report.summary), ...blocks);
}

// A layer whose numbers are not finite must not look like one that was not measured.
/** @type {(summary: LayerSummary, key: SummaryNumber, digits: number) => string} */
const shownNumber = (summary, key, digits) => summary.diverged && (key === "rotation" || key === "norm") && summary[key] === null ? "not finite" : sig(summary[key], digits);
/** @type {(key: string, value: Known) => boolean} */
const off = (key, value) => /_ratio$/.test(key) && value !== null
  && (value > state.report.max_usual_ratio || value < 1 / state.report.max_usual_ratio);
// A row is a family of layers, or one layer. A family shows the smallest and the largest number of its members.
/** @type {(row: TableRow, text: (layer: LayerData, digits: number) => string, value?: (layer: LayerData) => Known) => string} */
const span = ({ layers }, text, value = () => null) => {
  const ranked = layers.filter(layer => value(layer) !== null).sort((a, b) => Number(value(a)) - Number(value(b)));
  const ends = [...new Set((ranked.length ? [ranked[0], ranked[ranked.length - 1]] : [layers[0]]).map(layer => text(layer, layers.length > 1 ? 2 : 3)))];
  return ends.join(ends.some(end => end.startsWith("-")) ? " to " : "–"); // a dash before a minus would be read as another minus
};
/** @param {TableRow} row */
function nameCell({ number, layers, label, key }) {
  const mark = several() ? [swatch(number)] : [], first = layers[0];
  if (layers.length === 1) return element("td", { className: label === first.label ? "" : "member" }, ...mark, element("button", { type: "button", className: "name", title: first.name,
    onclick: () => { choose(number); openLayer(first.name); } }, first.label));
  const isOpen = state.open.has(key), button = element("button", { type: "button", className: "family", onclick: () => {
    state.open[isOpen ? "delete" : "add"](key);
    drawTable();
  } }, `${label} (${layers.length})`);
  button.setAttribute("aria-expanded", String(isOpen));
  const known = layers.filter(layer => (layer.summary.rotation_ratio ?? 0) > 0);
  /** @type {(layer: LayerData) => number} */
  const distance = layer => Math.abs(Math.log(layer.summary.rotation_ratio ?? 1));
  const worst = known.reduce((most, layer) => distance(layer) > distance(most) ? layer : most, known[0] ?? first);
  return element("td", {}, ...mark, button, element("small", {}, "worst: ", chip(worst, number)));
}
/** @type {Column<TableRow>[]} */
const COLUMNS = [
  { key: "name", label: "layer", first: 1, value: row => row.label, cell: nameCell },
  { key: "shape", label: "shape", value: row => row.layers[0].vectors * row.layers[0].fan_in, cell: row => element("td", {}, row.layers[0].shape.join("×")) },
  { key: "reference", label: "compared with", first: 1, value: row => row.layers[0].summary.reference, cell: row => element("td", {}, row.layers[0].summary.reference) },
  { key: "state", label: "state", first: 1, value: row => row.layers[0].summary.state, cell: row => element("td", {}, [...new Set(row.layers.map(layer => layer.summary.state))].join(", ")) },
  ...SUMMARY.map(([key, label]) => ({ key, label, value: (/** @type {TableRow} */ row) => row.layers.map(layer => layer.summary[key]).reduce((a, b) => a === null || (b !== null && b > a) ? b : a),
    cell: (/** @type {TableRow} */ row) => element("td", { className: row.layers.some(layer => off(key, layer.summary[key])) ? "off" : "", dataset: { key } },
      span(row, (layer, digits) => shownNumber(layer.summary, key, digits), layer => layer.summary[key])) })),
];
/** @type {(number: number, layers: LayerData[], label: string) => TableRow} */
const rowOf = (number, layers, label) => ({ number, layers, label, key: `${number} ${label} ${layers[0].shape}` });
function drawTable() {
  const wanted = state.filter.toLowerCase();
  const rows = state.report.runs.flatMap((run, number) => {
    if (wanted) return run.layers.filter(layer => layer.name.toLowerCase().includes(wanted)).map(layer => rowOf(number, [layer], layer.label));
    /** @type {Map<string, LayerData[]>} */
    const families = new Map();
    for (const layer of run.layers) {
      const key = `${layer.family} ${layer.shape}`;
      families.set(key, [...families.get(key) ?? [], layer]);
    }
    return [...families.values()].map(layers => rowOf(number, layers, layers[0].family));
  });
  // Columns that are empty, or have the same number in all rows, would push others off the page.
  const summaries = state.report.runs.flatMap(run => run.layers.map(layer => layer.summary)), references = new Set(summaries.map(summary => summary.reference));
  const columns = COLUMNS.filter(({ key }) => key === "reference" ? references.size > 1
    : !/^(dead|frozen|alignment|decay|settled)/.test(key) || summaries.some(summary => summary[/** @type {SummaryNumber} */ (key)]));
  $("table-note").textContent = references.size > 1 ? "" : `Predicted is the ${[...references][0]}.`;
  drawRows($("layers-table"), columns, rows, state.sort, drawTable, row =>
    row.layers.length > 1 && state.open.has(row.key) ? row.layers.map(layer => rowOf(row.number, [layer], "")) : []);
  const count = rows.reduce((sum, row) => sum + row.layers.length, 0);
  $("table-count").textContent = `${count} of ${state.report.runs.length * current().layers.length} layers`;
}
function drawConfig() {
  $("config").replaceChildren(...state.report.runs.map((run, number) => element("details", { open: !several() && !state.live },
    element("summary", {}, several() ? swatch(number) : "", `Configuration of ${run.name}`), element("pre", {}, JSON.stringify(run.config, null, 2)))));
}

/** @type {() => NodeListOf<HTMLSelectElement>} */
const runChoices = () => document.querySelectorAll("select.run");
/** @param {number} number */
function choose(number) {
  if (number === state.run) return;
  state.run = number; state.look = -1;
  for (const select of runChoices()) select.value = String(number);
  drawHeat(); drawBalance();
  if (state.layer) drawLayer();
}
function drawFigures() {
  drawEquilibrium(); drawHeat(); drawBalance();
  if (state.layer) openLayer(state.layer, false);
}
function drawWords() { drawHead(); drawFindings(); drawTable(); }
function fillChoices() {
  /** @type {(value: string | number, label: string) => HTMLElement} */
  const option = (value, label) => element("option", { value }, label);
  $("layer-choice").replaceChildren(option("", "choose a layer"), ...current().layers.map(layer => option(layer.name, layer.label)));
  $("layer-choice").value = state.layer ?? "";
  for (const select of runChoices()) {
    select.replaceChildren(...state.report.runs.map((run, number) => option(number, run.name)));
    select.value = String(state.run);
    if (select.parentElement) select.parentElement.hidden = !several();
  }
}
/** @type {(event: Event) => string} */
const chosenIn = event => /** @type {HTMLInputElement} */ (event.target).value;
function listen() {
  $("layer-choice").addEventListener("change", event => chosenIn(event) && openLayer(chosenIn(event)));
  for (const select of runChoices()) select.addEventListener("change", event => choose(Number(chosenIn(event))));
  $("filter").addEventListener("input", event => { state.filter = chosenIn(event); drawTable(); });
  $("look-step").addEventListener("input", event => { state.look = Number(chosenIn(event)); drawLook(); });
  $("look-quantity").addEventListener("change", event => { state.quantity = chosenIn(event); drawLook(); });
  Look.listeners.push(() => { drawWords(); drawFigures(); }); // at once, because a printer does not wait
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
