"use strict";
// The page of runs: data in the layout of gyroscope/render/run_data.py; its words, its table, and how it grows.
const SEVERITY = { bad: "✗ Bad", warn: "! Warning", note: "• Note", good: "✓ Good" };
/** @type {[SummaryNumber, string][]} */
const SUMMARY = [["rotation", "rotation"], ["predicted_rotation", "predicted"], ["rotation_ratio", "÷ predicted"], ["norm", "norm"], ["norm_ratio", "÷ predicted"],
  ["decay_ratio", "λₑ/λ"], ["rotation_discrepancy", "D"], ["alignment", "s"], ["imbalance", "spread ÷ noise"], ["dead_vectors", "dead"], ["frozen_share", "frozen"], ["settled_at", "settled at"]];
/** @type {PageState} */
const state = { report: /** @type {any} */ (null), live: null, run: 0, layer: "", quantity: "angular_update", look: -1,
  sort: ["", 1], filter: "", redraw: 0, spoken: "" };
const several = () => state.report.runs.length > 1;
const current = () => state.report.runs[state.run];
/** @type {(run: RunData, name: string) => LayerData} */
const layerOf = (run, name) => /** @type {LayerData} */ (run.layers.find(layer => layer.name === name));

function drawVerdict() {
  const text = JSON.stringify([Look.dark, state.report.runs.map(run => [run.name, run.verdicts, run.notes, run.stride])]);
  if (text === state.spoken) return; // or a reader's voice would say it again
  state.spoken = text;
  const blocks = state.report.runs.flatMap((run, number) => {
    const items = run.verdicts.map(verdict => {
      const names = verdict.layers.slice(0, 6).flatMap((name, i) => [i ? ", " : "", chip(name, number)]);
      const rest = verdict.layers.length > 6 ? ` and ${verdict.layers.length - 6} more` : "";
      const more = element("span", { className: "more" }, element("a", { href: "#" + verdict.panel }, "See the evidence"), names.length ? ": " : "", ...names, rest);
      return element("li", { className: verdict.severity }, element("b", {}, SEVERITY[verdict.severity]),
        element("span", {}, verdict.sentence), ...(verdict.remedy ? [element("span", {}, "→ " + verdict.remedy)] : []),
        ...(verdict.trial ? [element("span", { className: "more" }, `Tried on real training: ${verdict.trial} in results/advice.md`)] : []), more);
    });
    const list = element("ul", {}, ...(items.length ? items : [element("li", { className: "note" }, "Nothing to say yet.")]));
    return several() ? [element("h3", {}, swatch(number), run.name + rank(number)), list] : [list];
  });
  const notes = state.report.runs.flatMap(run => [...run.notes, ...(run.stride > 1 ? [`${several() ? run.name + ": " : ""}${run.total.toLocaleString("en")} ` +
    `samples are too many for a page; every ${run.stride}th is shown, ${run.steps.length.toLocaleString("en")} in all.`] : [])]);
  $("verdict-body").replaceChildren(...blocks, ...notes.map(note => element("p", { className: "note" }, note)));
}
/** @type {(number: number) => string} */
const rank = number => number === 0 ? " (least stands out)" : number === 1 ? " (most stands out)" : "";
/** @type {(name: string, run: number) => HTMLElement} */
const chip = (name, run) => element("button", { type: "button", className: "chip", onclick: () => { choose(run); openLayer(name); } }, name);
/** @type {(number: number) => HTMLElement} */
const swatch = number => { const one = element("span", { className: "swatch" }); one.style.background = colour(number); return one; };

function drawHead() {
  const about = state.report.runs.map((run, number) => {
    const alive = run.status === "running";
    const status = element("span", { className: alive ? "live" : "", dataset: { status: run.status } }, run.status);
    const samples = `, ${run.total.toLocaleString("en")} samples up to step ${(run.steps.at(-1) ?? 0).toLocaleString("en")}, ${run.layers.length} layers`;
    const rules = [...new Set(run.groups.filter(group => group.layers).map(group => group.rule))].join("; ");
    return element("p", {}, ...(several() ? [swatch(number), element("strong", {}, run.name), ": "] : []), status, samples,
      element("br"), element("code", {}, rules));
  });
  $("about").replaceChildren(...about);
}

// A layer whose numbers are not finite must not look like one that was not measured.
/** @type {(summary: LayerSummary, key: SummaryNumber) => string} */
const shownNumber = (summary, key) => summary.diverged && (key === "rotation" || key === "norm") && summary[key] === null ? "not finite" : sig(summary[key]);
/** @type {(key: string, value: Known) => boolean} */
const off = (key, value) => /_ratio$|_discrepancy$/.test(key) && value !== null
  && (value > state.report.max_usual_ratio || value < 1 / state.report.max_usual_ratio);
/** @type {Column<TableRow>[]} */
const COLUMNS = [
  { key: "name", label: "layer", first: 1, value: row => row.layer.name, cell: ({ number, layer }) => element("td", {}, ...(several() ? [swatch(number)] : []),
    element("button", { type: "button", className: "name", onclick: () => { choose(number); openLayer(layer.name); } }, layer.name)) },
  { key: "shape", label: "shape", value: row => row.layer.vectors * row.layer.fan_in, cell: row => element("td", {}, row.layer.shape.join("×")) },
  { key: "reference", label: "compared with", first: 1, value: row => row.layer.summary.reference, cell: row => element("td", {}, row.layer.summary.reference) },
  ...SUMMARY.map(([key, label]) => ({ key, label, value: (/** @type {TableRow} */ row) => row.layer.summary[key], cell: (/** @type {TableRow} */ { layer }) =>
    element("td", { className: off(key, layer.summary[key]) ? "off" : "", dataset: { key } }, shownNumber(layer.summary, key)) })),
];
function drawTable() {
  const rows = state.report.runs.flatMap((run, number) => run.layers.map(layer => ({ number, layer })))
    .filter(row => row.layer.name.toLowerCase().includes(state.filter.toLowerCase()));
  drawRows($("layers-table"), COLUMNS, rows, state.sort, drawTable);
  $("table-count").textContent = `${rows.length} of ${state.report.runs.length * current().layers.length} rows`;
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
  drawHeat(); drawBalance(); drawPlane();
  if (state.layer) drawLayer();
}
function drawFigures() {
  drawEquilibrium(); drawHeat(); drawBalance(); drawSignal(); drawPlane(); drawStability();
  if (state.layer) drawLayer();
}
function drawWords() { drawHead(); drawVerdict(); drawTable(); }
function fillChoices() {
  /** @type {(value: string | number, label: string) => HTMLElement} */
  const option = (value, label) => element("option", { value }, label);
  $("layer-choice").replaceChildren(option("", "choose a layer"), ...current().layers.map(layer => option(layer.name, layer.name)));
  $("layer-choice").value = state.layer ?? "";
  for (const select of runChoices()) {
    select.replaceChildren(...state.report.runs.map((run, number) => option(number, run.name)));
    select.value = String(state.run);
    if (select.parentElement) select.parentElement.hidden = !several();
  }
}
/** At most once per frame, however many updates came. */
function redraw() {
  cancelAnimationFrame(state.redraw);
  state.redraw = requestAnimationFrame(() => { drawWords(); drawFigures(); });
}
/** @type {(event: Event) => string} */
const chosenIn = event => /** @type {HTMLInputElement} */ (event.target).value;
function listen() {
  $("layer-choice").addEventListener("change", event => chosenIn(event) && openLayer(chosenIn(event)));
  for (const select of runChoices()) select.addEventListener("change", event => choose(Number(chosenIn(event))));
  $("filter").addEventListener("input", event => { state.filter = chosenIn(event); drawTable(); });
  $("look-step").addEventListener("input", event => { state.look = Number(chosenIn(event)); drawLook(); });
  $("look-quantity").addEventListener("change", event => { state.quantity = chosenIn(event); drawLook(); });
  Look.listeners.push(() => { drawWords(); drawFigures(); }); // at once: a printer does not wait
  onResize(drawFigures);
}
/** @param {Report} report @param {LiveData | null} live */
function show(report, live = null) {
  const begun = state.report !== null;
  Object.assign(state, { report, live });
  fillChoices();
  drawWords(); drawConfig(); drawFigures();
  if (!begun) listen();
  document.body.dataset.ready = "yes";
}

// New samples of a run that is being written: arrays grow, and the rest is replaced where the server sent it.
/** @param {Update} update */
function grow(update) {
  const run = state.report.runs.find(one => one.id === update.id);
  if (!run || update.from !== run.steps.length) return false;
  /** @type {(series: Record<string, Values>, more: Record<string, Values>) => void} */
  const extend = (series, more) => { for (const [name, values] of Object.entries(more)) series[name].push(...values); };
  const count = update.steps.length;
  if (count) {
    run.steps.push(...update.steps);
    extend(run.series, update.series);
    update.groups.forEach((more, i) => extend(run.groups[i].series, more));
    for (const [name, values] of Object.entries(update.layers)) // of all layers, one after the other
      run.layers.forEach((layer, i) => layer.series[name].push(...values.slice(i * count, (i + 1) * count)));
  }
  run.status = update.status; run.total = update.total;
  if (update.findings) {
    Object.assign(run, { verdicts: update.findings.verdicts, marks: update.findings.marks, notes: update.findings.notes,
      scalars: update.findings.scalars });
    update.findings.layers.forEach((more, i) => Object.assign(run.layers[i], more));
  }
  redraw();
  return true;
}
const Gyroscope = { show, grow, state };
