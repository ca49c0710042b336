"use strict";
// One layer of a run: its curves, and the distribution of its neurons at a step.
/** @type {Record<string, string>} */
const QUANTITY = { angular_update: "rotation, rad per step", norm: "norm" };
/** A page in a file contains all series. A live page asks the server for those of the open layer. @param {string} name */
async function openLayer(name, isNew = true) {
  if (!layerOf(current(), name)) return;
  if (isNew) { state.layer = name; state.look = -1; }
  const { live } = state, series = await Promise.all(state.report.runs.map(run => live ? live.series(run, name) : layerOf(run, name)?.series ?? null));
  if (name !== state.layer) return; // the reader has opened another since
  state.series = series;
  drawLayer();
  if (isNew) $("layer").scrollIntoView({ behavior: "smooth", block: "nearest" });
}
/** @type {[string, Curve][]} */
const CURVES = [
  ["norm", { measured: "norm.rms", predicted: ["forecast_norm", "predicted_norm"], log: true }],
  ["rotation", { measured: "angular_update.mean", low: "angular_update.q05", high: "angular_update.q95",
    predicted: ["forecast_angular_update", "predicted_angular_update"], log: true }],
  ["start", { measured: "angle_to_start.mean", low: "angle_to_start.q05", high: "angle_to_start.q95" }],
  ["cosine", { measured: "grad_weight_cosine.mean", level: 0 }],
  ["decay", { measured: "lambda_e.q50", group: "weight_decay" }],
  ["alignment", { measured: "alignment", level: 1, log: true }],
];
function drawLayer() {
  $("layer").hidden = false;
  const one = layerOf(current(), state.layer);
  $("layer-name").textContent = one.name;
  $("layer-about").textContent = `${one.shape.join(" × ")}: ${one.vectors.toLocaleString("en")} vectors of ` +
    `${one.fan_in.toLocaleString("en")} entries (per ${one.granularity}), group ${one.group}.`;
  for (const [id, want] of CURVES) drawCurve("layer-" + id, want);
  drawLook();
}
/** @param {string} id @param {Curve} want */
function drawCurve(id, want) {
  /** @type {[Trace[], [RunData, Values][], [RunData, Values][]]} */
  const [traces, shown, bands] = [[], [], []];
  state.report.runs.forEach((run, number) => {
    const layer = layerOf(run, state.layer), series = state.series[number], many = several(), own = runColour(number);
    if (!layer || !series) return;
    /** @type {(values: Values | undefined, name: string, line: Layout) => boolean} */
    const take = (values, name, style) => {
      if (!values || !finite(values).length) return false;
      shown.push([run, values]);
      traces.push(line(run.steps, values, many ? (style.dash ? `${run.name}, ${name}` : run.name) : name, own,
        { legendgroup: "run" + number, showlegend: !(many && style.dash), line: style }));
      return true;
    };
    const pick = (/** @type {string} */ key) => series[key] && atRate(run, series[key]);
    if (want.low && want.high && !many) {
      const [low, high] = [want.low, want.high].map(pick);
      traces.push(...band(run.steps, low, high, own, "5–95 % of neurons"));
      bands.push([run, low], [run, high]);
    }
    take(pick(want.measured), "measured", {});
    const dashed = { dash: "dash", width: 1.6 };
    if (want.predicted) take(pick(want.predicted[0]), "forecast", dashed) || take(pick(want.predicted[1]), "equilibrium", dashed);
    if (want.group) take(run.groups[layer.group].series[want.group], "weight decay λ", dashed);
  });
  const shapes = want.level === undefined ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: want.level, y1: want.level,
    line: { color: Look.of("soft"), dash: "dash", width: 1 } }];
  if (!shown.length) return empty(id, "Not measured for this optimizer.");
  if (want.level) shown.push([current(), current().steps.map(() => want.level ?? null)]);
  const axis = want.log ? { type: "log", range: steadyRange(shown, bands) } : {};
  draw(id, traces, { height: 250, shapes: [...shapes, ...marked(allRuns())], xaxis: timeAxis(), yaxis: axis });
}

// The steps at which neurons can be shown. A live page asks the server, and a page in a file contains a few steps.
/** @type {() => (number | Distribution)[]} */
const looks = () => {
  const run = current(), layer = layerOf(run, state.layer);
  if (!state.live) return layer.distributions[state.quantity] ?? [];
  // The last sample of a run may have norms and no rotation.
  const rotation = state.series[state.run]?.["angular_update.mean"] ?? [];
  return run.steps.filter((_, i) => state.quantity === "norm" || (rotation[i] ?? null) !== null);
};
async function drawLook() {
  const all = looks(), slider = $("look-step");
  slider.max = Math.max(0, all.length - 1);
  const opened = state.report.at ?? Infinity;
  /** @type {(one: number | Distribution) => number} */
  const away = one => Math.abs((typeof one === "number" ? one : one.step) - opened);
  const first = Number.isFinite(opened) ? all.reduce((/** @type {number} */ best, one, i) => away(one) < away(all[best]) ? i : best, 0) : all.length - 1;
  const place = state.look < 0 ? first : Math.min(state.look, all.length - 1);
  slider.value = place;
  const wanted = [state.run, state.layer, state.quantity, place].join();
  const there = all[place];
  const found = typeof there === "number" ? await state.live?.distribution(current(), state.layer, state.quantity, there) : there;
  if (wanted !== [state.run, state.layer, state.quantity, place].join()) return; // the reader has chosen another since
  if (!found) { $("look-extremes").textContent = ""; return empty("look-figure", "Not measured at this step."); }
  slider.setAttribute("aria-valuetext", "step " + found.step);
  $("look-at").textContent = `step ${found.step.toLocaleString("en")}`;
  const edges = [...found.counts, 0].map((_, i) => 2 ** ((found.first + i - 96) / 2));
  const own = runColour(state.run), unit = state.quantity === "norm" ? "" : " rad";
  const shapes = [found.least, found.most].filter(x => x > 0).map(x => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1,
    line: { color: Look.of("soft"), dash: "dot", width: 2 } }));
  draw("look-figure", [{ x: edges, y: [...found.counts, 0], type: "scatter", mode: "lines", fill: "tozeroy", fillcolor: faint(own, 0.45),
    line: { shape: "hv", color: own, width: 1.5 }, hovertemplate: "from %{x:.3g}: %{y} neurons<extra></extra>" }],
  { height: 250, shapes, showlegend: false, xaxis: { type: "log", title: { text: QUANTITY[state.quantity] }, range: logRange([edges]) },
    yaxis: { title: { text: "neurons" }, rangemode: "tozero" } });
  const words = state.quantity === "norm" ? ["Smallest", "Largest"] : ["Slowest", "Fastest"];
  $("look-extremes").textContent = found.least_id < 0 ? ""
    : `${words[0]}: neuron ${found.least_id}, ${sig(found.least)}${unit}. ${words[1]}: neuron ${found.most_id}, ${sig(found.most)}${unit}.`;
}
