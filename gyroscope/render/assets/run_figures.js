"use strict";
// The figures of runs: what training logged, and rotation with its forecast. Measured solid, predicted dashed.
const MOST_LOGGED = 4, HEIGHT = 380, GAP = 30; // number of charts of logged values, pixels of each figure and between charts
const LOSS = /loss|nll|entropy|perplexity|ppl|error/i;
const loggedNames = () => [...new Set(state.report.runs.flatMap(run => Object.keys(run.scalars)))].slice(0, MOST_LOGGED);
function drawLogged() {
  const names = loggedNames();
  const box = /** @type {HTMLElement} */ ($("logged-figure").parentElement);
  box.hidden = !names.length;
  if (!names.length) return;
  /** @type {[Trace[], Layout[], Layout]} */
  const [traces, annotations, axes] = [[], [], {}];
  // The first is the loss, and takes half of the figure.
  const weights = names.map((_, place) => place || names.length === 1 ? 1 : names.length - 1), total = weights.reduce((a, b) => a + b, 0);
  const gap = GAP / (HEIGHT - 54);
  let top = 1;
  names.forEach((name, place) => {
    const axis = place ? String(place + 1) : "", part = weights[place] / total;
    /** @type {number[]} */
    const all = [];
    state.report.runs.forEach((run, number) => {
      const logged = Object.hasOwn(run.scalars, name) ? run.scalars[name] : null;
      if (!logged) return;
      all.push(...finite(logged.values));
      traces.push(line(logged.steps, logged.values, several() ? `${name}, ${run.name}` : name, runColour(number), { yaxis: "y" + axis,
        mode: logged.steps.length > 1 ? "lines" : "markers", line: { width: 1.5 } }));
    });
    const low = all.reduce((a, b) => Math.min(a, b), Infinity), high = all.reduce((a, b) => Math.max(a, b), -Infinity);
    const log = LOSS.test(name) && low > 0 && high > 10 * low;
    // The name is above its chart, because names beside charts this low would touch each other.
    annotations.push({ text: plain(name), x: 0, xref: "paper", xanchor: "left", y: top - gap, yref: "paper", yanchor: "bottom", showarrow: false, borderpad: 0, font: { size: 12 } });
    axes["yaxis" + axis] = { domain: [top - part, top - gap], nticks: place ? 3 : 6, ...(log ? { type: "log", range: [Math.log10(low / 1.2), Math.log10(high * 1.2)] } : {}) };
    top -= part;
  });
  draw("logged-figure", traces, { height: HEIGHT, shapes: marked(allRuns()), annotations, showlegend: false, ...axes,
    xaxis: timeAxis({ anchor: "y" + (names.length > 1 ? names.length : "") }) });
}

// Marks of runs across a time axis: events in the colour of a warning, expected ones in a soft colour.
/** @type {(mark: Mark, own: string) => string} */
const markColour = (mark, own) => mark.incident ? Look.of("warn") : own;
/** @type {(runs: [RunData, number][]) => Layout[]} */
const marked = runs => runs.flatMap(([run, number]) => run.marks.map(mark => ({ type: "line", x0: mark.step, x1: mark.step, yref: "paper",
  y0: 0, y1: 1, line: { color: markColour(mark, several() ? runColour(number) : Look.of("soft")), width: mark.incident ? 1.5 : 1, dash: "dot" } })));
/** @type {() => [RunData, number][]} */
const allRuns = () => state.report.runs.map((run, number) => [run, number]);
// A time axis: all steps, or those around the one at which the page opens.
const AROUND = 0.05; // share of the run on each side
function timeAxis(extra = {}) {
  const axis = { title: { text: "step" }, ...extra }, at = state.report.at;
  if (at === null || at === undefined) return axis;
  const last = state.report.runs.reduce((most, run) => Math.max(most, run.steps.at(-1) ?? 0), 0), half = Math.max(20, AROUND * last);
  return { ...axis, range: [at - half, at + half] };
}
// Values of a run while its learning rate is not almost 0. The end of a schedule would flatten all others on a logarithmic axis.
/** @type {(run: RunData, values: Values) => Values} */
const atRate = (run, values) => {
  const lr = run.groups.find(group => group.series.lr)?.series.lr ?? [];
  const least = state.report.min_rate_share * finite(lr).reduce((a, b) => Math.max(a, b), 0);
  return values.map((value, i) => (lr[i] ?? least) < least ? null : value);
};
const START = 0.05, BEYOND = 2; // share of the steps that is the start, and the factor by which it may widen an axis
// The range of a logarithmic axis: that of the curves after the start, which a warmup spreads over decades.
/** @param {[RunData, Values][]} lines @param {[RunData, Values][]} bands */
function steadyRange(lines, bands = []) {
  /** @type {([run, values]: [RunData, Values]) => Values} */
  const steady = ([run, values]) => values.filter((_, i) => run.steps[i] >= START * (run.steps.at(-1) ?? 0));
  const inner = logRange(lines.map(steady), bands.map(steady)), outer = logRange(lines.map(([, values]) => values), bands.map(([, values]) => values));
  if (!inner || !outer) return outer;
  return [Math.max(outer[0], inner[0] - Math.log10(BEYOND)), Math.min(outer[1], inner[1] + Math.log10(BEYOND))];
}
const ROW = 0.06; // share of a figure's height for the names of marks above the curves, a row for each run
// The forecast is the only reference. A run without one has its equilibrium instead.
/** @type {(run: RunData) => [string, Values]} */
const referenceOf = run => finite(run.series["forecast_angular_update.q50"]).length ? ["forecast", run.series["forecast_angular_update.q50"]]
  : ["equilibrium", run.series["predicted_angular_update.q50"]];
function drawRotation() {
  /** @type {[Trace[], [RunData, Values][], [RunData, Values][], Layout[]]} */
  const [traces, lines, bands, annotations] = [[], [], [], []];
  const many = several(), rows = Math.min(4, state.report.runs.reduce((most, run) => Math.max(most, run.marks.length), many ? 2 : 1));
  state.report.runs.forEach((run, number) => {
    const own = runColour(number), [low, middle, high] = ["q05", "q50", "q95"].map(q => atRate(run, run.series["angular_update.mean." + q]));
    const [word, values] = referenceOf(run), predicted = atRate(run, values);
    lines.push([run, middle], [run, predicted]);
    if (!many) {
      bands.push([run, low], [run, high]);
      traces.push(...band(run.steps, low, high, own, "5–95 % of layers"));
    }
    traces.push(line(run.steps, middle, many ? run.name : "measured, median layer", own));
    traces.push(line(run.steps, predicted, many ? `${run.name}, ${word}` : word, own, { line: { dash: "dash", width: 1.6 } }));
    run.groups.forEach((settings, place) => {
      if (!settings.series.lr) return;
      traces.push(line(run.steps, settings.series.lr, `lr of group ${place}` + (many ? `, ${run.name}` : ""), many ? own : Look.of("soft"),
        { yaxis: "y2", showlegend: false, line: { width: 1.5 } }));
    });
    run.marks.forEach((mark, place) => {
      if (many && !mark.incident) return; // their lines are enough
      annotations.push({ x: mark.step, yref: "paper", y: 0.995 - ROW * ((number + place) % rows), text: plain(mark.what), showarrow: false,
        xanchor: "left", xshift: 3, borderpad: 0, bgcolor: Look.of("card"), font: { size: 12, color: markColour(mark, many ? own : Look.of("soft")) } });
    });
  });
  const range = steadyRange(lines, bands);
  if (range) range[1] += (range[1] - range[0]) * rows * ROW / (0.7 - rows * ROW);
  draw("rotation-figure", traces, { height: HEIGHT, shapes: marked(allRuns()), annotations, showlegend: !many, xaxis: timeAxis({ anchor: "y2" }),
    yaxis: { title: { text: "rotation, rad per step" }, type: "log", range, domain: [0.3, 1] },
    yaxis2: { title: { text: "lr" }, domain: [0, 0.2], rangemode: "tozero", nticks: 3 } });
  const word = [...new Set(state.report.runs.map(run => referenceOf(run)[0]))].join(" or ");
  $("curves-note").textContent = many ? `Solid: measured, the median layer. Dashed: ${word}. Colours are those of the table.` : "";
}
