"use strict";
// The figures of a run: equilibrium with what training logged, the map of layers, balance.
// Values that training logged: one small chart for each name above the rotation chart, on the same axis of steps.
const MOST_LOGGED = 4, LOGGED_HEIGHT = 140, GAP = 0.16; // number of charts, pixels of each, and the share of it that its name takes
const LOSS = /loss|nll|entropy|perplexity|ppl|error/i;
const loggedNames = () => [...new Set(state.report.runs.flatMap(run => Object.keys(run.scalars)))].slice(0, MOST_LOGGED);
/** @param {string} name @param {number} place @param {number} count @param {number} base @param {Trace[]} traces @param {Layout[]} annotations */
function loggedChart(name, place, count, base, traces, annotations) {
  const axis = place + 3; // after the axes of rotation and of the learning rate
  /** @type {number[][]} */
  const all = [];
  state.report.runs.forEach((run, number) => {
    const logged = Object.hasOwn(run.scalars, name) ? run.scalars[name] : null;
    if (!logged) return;
    all.push(finite(logged.values));
    traces.push(line(logged.steps, logged.values, several() ? `${name}, ${run.name}` : name, runColour(number), { yaxis: "y" + axis, showlegend: false,
      legendgroup: several() ? "run" + number : name, mode: logged.steps.length > 1 ? "lines" : "markers", line: { width: 1.5 } }));
  });
  const values = all.flat(), low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const part = (1 - base) / count, top = 1 - (place + GAP) * part, log = LOSS.test(name) && low > 0 && high > 10 * low;
  // The name is above its chart, because names beside charts this low would touch each other.
  annotations.push({ text: labels([name])[0], x: 0, xref: "paper", xanchor: "left", y: top, yref: "paper", yanchor: "bottom", showarrow: false, borderpad: 0, font: { size: 12 } });
  return ["yaxis" + axis, { domain: [top - part * (1 - 1.3 * GAP), top],
    ...(log ? { type: "log", range: [Math.log10(low / 1.2), Math.log10(high * 1.2)] } : {}) }];
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
const ROW = 0.05; // share of a figure's height for the names of marks above the curves, a row for each run
function drawEquilibrium() {
  /** @type {[Trace[], Values[], Values[], Layout[]]} */
  const [traces, lines, bands, annotations] = [[], [], [], []];
  const shapes = marked(allRuns()), rows = Math.min(4, state.report.runs.reduce((most, run) => Math.max(most, run.marks.length), state.report.runs.length));
  const names = loggedNames(), height = 520 + LOGGED_HEIGHT * names.length, base = 520 / height; // share of rotation and lr
  state.report.runs.forEach((run, number) => {
    const many = several(), own = runColour(number), group = { legendgroup: "run" + number };
    const pick = (/** @type {string} */ name) => atRate(run, run.series[name]);
    const [low, middle, high] = ["q05", "q50", "q95"].map(q => pick("angular_update.mean." + q));
    const predicted = pick("predicted_angular_update.q50"), forecast = pick("forecast_angular_update.q50");
    lines.push(middle, predicted, forecast);
    bands.push(low, high);
    traces.push(...band(run.steps, low, high, own, "5–95 % of layers", { ...group, showlegend: false }));
    if (!many) traces[traces.length - 1].showlegend = true;
    traces.push(line(run.steps, middle, many ? run.name : "measured, median layer", own, group));
    traces.push(line(run.steps, predicted, many ? run.name + ", equilibrium" : "equilibrium, predicted",
      many ? own : colour(1), { ...group, line: { dash: "dash", width: 1.8 }, showlegend: !many }));
    traces.push(line(run.steps, forecast, many ? run.name + ", forecast" : "forecast",
      many ? own : colour(2), { ...group, line: { dash: "dot", width: 1.8 }, showlegend: !many }));
    run.groups.forEach((settings, place) => {
      if (!settings.series.lr) return;
      traces.push(line(run.steps, settings.series.lr, `lr of group ${place}` + (many ? `, ${run.name}` : ""),
        many ? own : Look.of("soft"), { ...group, yaxis: "y2", showlegend: false, line: { width: 1.5 } }));
    });
    run.marks.forEach((mark, place) => {
      annotations.push({ x: mark.step, yref: "paper", y: base * (0.995 - ROW * ((number + place) % rows)), text: plain(mark.what), showarrow: false,
        xanchor: "left", xshift: 3, borderpad: 0, bgcolor: Look.of("card"), font: { size: 12, color: markColour(mark, many ? own : Look.of("soft")) } });
    });
  });
  const range = logRange(lines, bands);
  if (range) range[1] += (range[1] - range[0]) * rows * ROW / (0.7 - rows * ROW);
  const logged = Object.fromEntries(names.map((name, place) => loggedChart(name, place, names.length, base, traces, annotations)));
  draw("equilibrium-figure", traces, { height, shapes, annotations, showlegend: true, ...logged,
    xaxis: timeAxis({ anchor: "y2" }),
    yaxis: { title: { text: "rotation, rad per step" }, type: "log", range, domain: [0.3 * base, base] },
    yaxis2: { title: { text: "lr" }, domain: [0, 0.22 * base], rangemode: "tozero" } });
  $("equilibrium-note").textContent = several() ? "Solid: measured. Dashed: predicted equilibrium. Dotted: forecast." : "";
  $("logged-note").textContent = names.length ? `Above rotation: ${names.join(", ")}, as logged in training.` : "";
}

function drawHeat() {
  const run = current(), names = run.layers.map(layer => layer.label), rows = names.map((_, i) => i);
  const [low, high] = Look.dark ? ["#4aa8e0", "#f08a3c"] : ["#0072b2", "#c24a00"];
  const every = Math.ceil(names.length / 110); // labels that stay apart
  /** @type {Trace} */
  const heat = { type: "heatmap", x: run.map_steps, y: rows, z: run.layers.map(layer => layer.ratios), zmin: -2, zmax: 2,
    colorscale: [[0, low], [0.5, Look.of("middle")], [1, high]], customdata: rows.map(i => run.map_steps.map(() => plain(names[i]))),
    hovertemplate: "%{customdata}<br>step %{x}: 2^%{z:.2f} × predicted<extra></extra>",
    colorbar: { title: { text: "measured ÷ predicted", side: "right" }, tickvals: [-2, -1, 0, 1, 2],
      ticktext: ["≤ ¼", "½", "1", "2", "≥ 4"], thickness: 12 } };
  if (innerWidth < 700) heat.colorbar = { ...heat.colorbar, orientation: "h", y: 1.02, yanchor: "bottom", len: 0.9, title: { text: "" } };
  draw("heat-figure", [heat], { height: Math.max(240, Math.min(1600, (names.length > 40 ? 14 : 18) * names.length + 110)), showlegend: false,
    shapes: marked([[run, state.run]]), xaxis: timeAxis({ showgrid: false }), yaxis: { autorange: "reversed", showgrid: false, zeroline: false,
      tickfont: { size: names.length > 40 ? 10.5 : 13 }, tickvals: rows.filter(i => i % every === 0), ticktext: labels(names).filter((_, i) => i % every === 0) } });
  const figure = $("heat-figure");
  figure.removeAllListeners("plotly_click");
  figure.on("plotly_click", event => openLayer(current().layers[event.points[0].y].name));
}

const MOST_BOXES = 40;
function drawBalance() {
  const run = current(), known = run.layers.filter(layer => layer.spread.q05 !== null && layer.vectors > 1);
  if (!known.length) return empty("balance-figure", "No layer's neurons were measured.");
  const worst = [...known].sort((a, b) => (b.summary.imbalance ?? 0) - (a.summary.imbalance ?? 0)).slice(0, MOST_BOXES);
  const rows = worst.map((_, i) => i), of = (/** @type {"q05" | "q25" | "q75" | "q95"} */ key) => worst.map(layer => layer.spread[key]);
  const noise = worst.map(layer => Math.sqrt(layer.spread.noise ?? 0));
  const soft = Look.of("soft"), own = runColour(state.run);
  const pure = { type: "scatter", mode: "lines", name: "5–95 % of pure noise", line: { color: faint(soft, 0.45), width: 15 },
    x: noise.flatMap(s => [1 / s, s, null]), y: rows.flatMap(i => [i, i, null]), hoverinfo: "skip" };
  const boxes = { type: "box", orientation: "h", name: "neurons: 5, 25, 50, 75, 95 %", y: rows, q1: of("q25"), q3: of("q75"),
    median: rows.map(() => 1), lowerfence: of("q05"), upperfence: of("q95"), line: { color: own, width: 1.5 }, fillcolor: faint(own, 0.3),
    width: 0.55, hoverinfo: "x" };
  draw("balance-figure", [pure, boxes], { height: Math.max(240, 24 * rows.length + 120), showlegend: true,
    xaxis: { type: "log", title: { text: innerWidth < 700 ? "rotation ÷ median" : "rotation ÷ median of the layer" }, range: logRange([of("q05"), of("q95"), noise, [0.8, 1.25]]) },
    yaxis: { autorange: "reversed", zeroline: false, showgrid: false, tickvals: rows, ticktext: labels(worst.map(layer => layer.label)) } });
  $("balance-note").textContent = known.length > worst.length ? `The ${MOST_BOXES} least balanced of ${known.length} layers. The table has all.` : "";
}
