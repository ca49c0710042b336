"use strict";
// The page of a report: data in the layout of gyroscope/render/run_data.py, drawn by Plotly.
const Gyroscope = (() => {
  const COLOURS = Look.colours;
  const DARKER = { "#0072b2": "#4aa8e0", "#999999": "#b5b5b5" }; // lighter twins for a dark ground
  const SEVERITY = { bad: "✗ Bad", warn: "! Warning", note: "• Note", good: "✓ Good" };
  const QUANTITY = { angular_update: "rotation, rad per step", norm: "norm" };
  const COLUMNS = [
    ["rotation", "rotation"], ["predicted_rotation", "predicted"], ["rotation_ratio", "÷ predicted"],
    ["norm", "norm"], ["norm_ratio", "÷ predicted"], ["decay_ratio", "λₑ/λ"], ["kappa", "κ"],
    ["imbalance", "spread ÷ noise"], ["dead_vectors", "dead"], ["frozen_share", "frozen"], ["settled_at", "settled at"],
  ];
  const state = { report: null, live: null, run: 0, layer: null, quantity: "angular_update", look: -1,
    sort: ["", 1], filter: "", redraw: 0, spoken: "" };

  // ---- small helpers
  const $ = id => document.getElementById(id);
  const plain = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // for Plotly
  const colour = number => { const one = COLOURS[number % COLOURS.length]; return Look.dark ? DARKER[one] ?? one : one; };
  const faint = (hex, alpha = 0.18) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
  const sig = (x, digits = 3) => x === null || x === undefined ? "–"
    : x !== 0 && Math.abs(x) < 1e-4 ? x.toExponential(digits - 1) : Math.abs(x) >= 10 ** digits ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(digits)));
  // Names as labels: without an ending that all have, and cut where they are long.
  function labels(names, most = innerWidth < 700 ? 15 : 36) {
    const ending = names.length > 1 && names.every(name => name.endsWith(".weight")) ? ".weight".length : 0;
    return names.map(name => name.slice(0, name.length - ending)).map(name => plain(name.length > most ? "…" + name.slice(1 - most) : name));
  }
  const several = () => state.report.runs.length > 1;
  const current = () => state.report.runs[state.run];
  const layerOf = (run, name) => run.layers.find(layer => layer.name === name);
  const finite = values => values.filter(value => value !== null);
  function element(tag, options = {}, ...children) {
    const { dataset, ...rest } = options;
    const made = Object.assign(document.createElement(tag), rest);
    Object.assign(made.dataset, dataset);
    made.append(...children);
    return made;
  }

  // ---- figures
  function draw(id, traces, options = {}) {
    const { axis, ...look } = Look.layout();
    const figure = $(id), narrow = innerWidth < 700;
    const layout = { ...look, height: 340, margin: { l: narrow ? 52 : 64, r: 12, t: 12, b: 42 }, hovermode: "closest",
      width: figure.clientWidth,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal", font: { size: 12 } }, showlegend: traces.length > 1, uirevision: "keep",
      ...options };
    for (const name of ["xaxis", "yaxis", ...Object.keys(options).filter(key => /^[xy]axis/.test(key))])
      layout[name] = { ...axis, automargin: true, exponentformat: "power", ...ticks(options[name]), ...options[name] };
    if (figure.layout && figure.layout.width !== layout.width) Plotly.purge(figure); // or its legend stays where it was
    Plotly.react(figure, traces, layout, { displaylogo: false, showSendToCloud: false, displayModeBar: narrow ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"] }); // each is a stop for the Tab key
  }
  // Of a logarithmic axis: decades where there are several, else numbers between them too, written out.
  function ticks(axis) {
    if (axis?.type !== "log" || axis.tickvals || !axis.range) return {};
    if (Math.abs(axis.range[1] - axis.range[0]) > 2.2) return { dtick: 1 };
    const decades = Array.from({ length: 30 }, (_, i) => 10 ** (i - 20));
    const span = Math.abs(axis.range[1] - axis.range[0]);
    const digits = span > 0.8 ? [1, 2, 5] : span > 0.4 ? [1, 1.5, 2, 3, 5, 7] : [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
    const tickvals = decades.flatMap(decade => digits.map(digit => Number((digit * decade).toPrecision(3))));
    return { tickangle: 0, tickvals, ticktext: tickvals.map(value => value < 1e-4 || value >= 1e5 ? value.toExponential() : String(value)) };
  }
  const line = (x, y, name, shade, extra = {}) => ({ x, y, name: plain(name), mode: "lines", type: "scatter",
    line: { color: shade, width: 2, ...extra.line }, hovertemplate: "step %{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
    ...Object.fromEntries(Object.entries(extra).filter(([key]) => key !== "line")) });
  function band(x, low, high, shade, name, extra = {}) {
    const edge = { mode: "lines", type: "scatter", line: { width: 0 }, hoverinfo: "skip", ...extra };
    return [{ ...edge, x, y: low, showlegend: false },
      { ...edge, x, y: high, fill: "tonexty", fillcolor: faint(shade), name: plain(name) }];
  }
  // A logarithmic axis that the last steps of a schedule, which go to nothing, do not flatten.
  function logRange(...lists) {
    const values = lists.flat().filter(value => value > 0);
    if (!values.length) return undefined;
    const high = values.reduce((a, b) => Math.max(a, b)), low = values.reduce((a, b) => Math.min(a, b));
    return [Math.log10(Math.max(low, high / 1000) / 1.3), Math.log10(high * 1.3)];
  }
  const empty = (id, text) => { Plotly.purge($(id)); $(id).replaceChildren(element("p", {}, text)); };

  // What training logged, one small chart for each name above the curves of rotation, on the same axis of steps.
  const MOST_LOGGED = 4, LOGGED_HEIGHT = 140, GAP = 0.16; // charts; pixels of each; its share that stays free below it
  const LOSS = /loss|nll|entropy|perplexity|ppl|error/i;
  const loggedNames = () => [...new Set(state.report.runs.flatMap(run => Object.keys(run.scalars)))].slice(0, MOST_LOGGED);
  function loggedChart(name, place, count, base, traces) {
    const axis = place + 3, all = []; // after the axes of rotation and of the learning rate
    state.report.runs.forEach((run, number) => {
      const logged = Object.hasOwn(run.scalars, name) ? run.scalars[name] : null;
      if (!logged) return;
      all.push(finite(logged.values));
      traces.push(line(logged.steps, logged.values, several() ? `${name}, ${run.name}` : name, colour(number), { yaxis: "y" + axis, showlegend: false,
        legendgroup: several() ? "run" + number : name, mode: logged.steps.length > 1 ? "lines" : "markers", line: { width: 1.5 } }));
    });
    const values = all.flat(), low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
    const part = (1 - base) / count, top = 1 - place * part, log = LOSS.test(name) && low > 0 && high > 10 * low;
    const title = name.length > 16 ? name.slice(0, 15) + "…" : name;
    return ["yaxis" + axis, { title: { text: plain(title) }, domain: [top - part * (1 - GAP), top],
      ...(log ? { type: "log", range: [Math.log10(low / 1.2), Math.log10(high * 1.2)] } : {}) }];
  }

  const ROW = 0.05; // of a figure's height: the names of marks stand above the curves, a row for each run
  function drawEquilibrium() {
    const traces = [], shapes = [], annotations = [], shown = [], rows = Math.min(4, state.report.runs.length);
    const names = loggedNames(), height = 520 + LOGGED_HEIGHT * names.length, base = 520 / height; // share of rotation and lr
    state.report.runs.forEach((run, number) => {
      const many = several(), own = colour(number), group = { legendgroup: "run" + number };
      const pick = name => run.series[name];
      const [low, middle, high] = ["q05", "q50", "q95"].map(q => pick("angular_update.mean." + q));
      const predicted = pick("predicted_angular_update.q50"), forecast = pick("forecast_angular_update.q50");
      shown.push(middle, predicted, low, high);
      traces.push(...band(run.steps, low, high, own, "5–95 % of layers", { ...group, showlegend: false }));
      if (!many) traces.at(-1).showlegend = true;
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
      run.marks.forEach(mark => {
        shapes.push({ type: "line", x0: mark.step, x1: mark.step, yref: "paper", y0: 0, y1: 1,
          line: { color: many ? own : Look.of("soft"), width: 1, dash: "dot" } });
        annotations.push({ x: mark.step, yref: "paper", y: base * (0.995 - ROW * (number % rows)), text: plain(mark.what), showarrow: false,
          xanchor: "left", xshift: 3, borderpad: 0, bgcolor: Look.of("card"), font: { size: 12, color: many ? own : Look.of("soft") } });
      });
    });
    const range = logRange(...shown);
    if (range) range[1] += (range[1] - range[0]) * rows * ROW / (0.7 - rows * ROW);
    const logged = Object.fromEntries(names.map((name, place) => loggedChart(name, place, names.length, base, traces)));
    draw("equilibrium-figure", traces, { height, shapes, annotations, showlegend: true, ...logged,
      xaxis: { title: { text: "step" }, anchor: "y2" },
      yaxis: { title: { text: "rotation, rad per step" }, type: "log", range, domain: [0.3 * base, base] },
      yaxis2: { title: { text: "lr" }, domain: [0, 0.22 * base], rangemode: "tozero" } });
    $("equilibrium-note").textContent = several() ? "Solid: measured. Dashed: predicted equilibrium. Dotted: forecast." : "";
    $("logged-note").textContent = names.length ? `Above rotation: ${names.join(", ")}, as training logged ${names.length > 1 ? "them" : "it"}.` : "";
  }

  const ratios = layer => layer.series["angular_update.mean"].map((value, i) => {
    const predicted = layer.series.predicted_angular_update[i];
    return value > 0 && predicted > 0 ? Math.log2(value / predicted) : null;
  });
  function drawHeat() {
    const run = current(), names = run.layers.map(layer => layer.name), rows = names.map((_, i) => i);
    const [low, high] = Look.dark ? ["#4aa8e0", "#f08a3c"] : ["#0072b2", "#c24a00"];
    const every = Math.ceil(names.length / 55); // labels that stay apart
    const heat = { type: "heatmap", x: run.steps, y: rows, z: run.layers.map(ratios), zmin: -2, zmax: 2,
      colorscale: [[0, low], [0.5, Look.of("middle")], [1, high]], customdata: rows.map(i => run.steps.map(() => plain(names[i]))),
      hovertemplate: "%{customdata}<br>step %{x}: 2^%{z:.2f} × predicted<extra></extra>",
      colorbar: { title: { text: "measured ÷ predicted", side: "right" }, tickvals: [-2, -1, 0, 1, 2],
        ticktext: ["≤ ¼", "½", "1", "2", "≥ 4"], thickness: 12 } };
    if (innerWidth < 700) heat.colorbar = { ...heat.colorbar, orientation: "h", y: 1.02, yanchor: "bottom", len: 0.9, title: { text: "" } };
    draw("heat-figure", [heat], { height: Math.max(240, Math.min(900, 18 * names.length + 110)), showlegend: false,
      xaxis: { title: { text: "step" }, showgrid: false }, yaxis: { autorange: "reversed", showgrid: false, zeroline: false,
        tickvals: rows.filter(i => i % every === 0), ticktext: labels(names).filter((_, i) => i % every === 0) } });
    const figure = $("heat-figure");
    figure.removeAllListeners("plotly_click");
    figure.on("plotly_click", event => open(current().layers[event.points[0].y].name));
  }

  // ---- one layer
  function open(name, scroll = true) {
    if (!layerOf(current(), name)) return;
    state.layer = name; state.look = -1;
    drawLayer();
    $("layer-choice").value = name;
    if (scroll) $("layer").scrollIntoView({ behavior: "smooth", block: "nearest" });
  }
  const CURVES = [
    ["norm", { measured: "norm.rms", predicted: "predicted_norm", forecast: "forecast_norm", log: true }],
    ["rotation", { measured: "angular_update.mean", low: "angular_update.q05", high: "angular_update.q95",
      predicted: "predicted_angular_update", forecast: "forecast_angular_update", log: true }],
    ["cosine", { measured: "grad_weight_cosine.mean", level: 0 }],
    ["decay", { measured: "lambda_e.q50", group: "weight_decay" }],
    ["kappa", { measured: "kappa.q50", level: 1, log: true, within: [0.03, 30] }],
  ];
  function drawLayer() {
    $("layer").hidden = false;
    const one = layerOf(current(), state.layer);
    $("layer-name").textContent = state.layer;
    $("layer-about").textContent = `${one.shape.join(" × ")}: ${one.vectors.toLocaleString("en")} vectors of ` +
      `${one.fan_in.toLocaleString("en")} entries (per ${one.granularity}), group ${one.group}.`;
    for (const [id, want] of CURVES) drawCurve("layer-" + id, want);
    drawLook();
  }
  function drawCurve(id, want) {
    const traces = [], shown = [];
    state.report.runs.forEach((run, number) => {
      const layer = layerOf(run, state.layer), many = several(), own = colour(number);
      if (!layer) return;
      const take = (key, name, shade, dash) => {
        const values = key === want.group ? run.groups[layer.group].series[key] : layer.series[key];
        if (!values || !finite(values).length) return;
        shown.push(values);
        traces.push(line(run.steps, values, many ? (dash ? `${run.name}, ${name}` : run.name) : name, shade,
          { legendgroup: "run" + number, showlegend: !(many && dash), line: dash ? { dash, width: 1.6 } : {} }));
      };
      if (want.low && !many) traces.push(...band(run.steps, layer.series[want.low], layer.series[want.high], own, "5–95 % of neurons"));
      if (want.low && !many) shown.push(layer.series[want.low], layer.series[want.high]);
      take(want.measured, "measured", own);
      if (want.predicted) take(want.predicted, "equilibrium", many ? own : colour(1), "dash");
      if (want.forecast) take(want.forecast, "forecast", many ? own : colour(2), "dot");
      if (want.group) take(want.group, "weight decay λ", many ? own : colour(1), "dash");
    });
    const shapes = want.level === undefined ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: want.level, y1: want.level,
      line: { color: Look.of("soft"), dash: "dash", width: 1 } }];
    if (!shown.length) return empty(id, "Not measured for this optimizer.");
    const [low, high] = want.within ?? [0, Infinity]; // beyond, a curve runs out of the picture
    const seen = shown.map(values => values.filter(value => value > low && value < high));
    const axis = want.log ? { type: "log", range: logRange(...seen, want.level ? [want.level] : []) } : {};
    draw(id, traces, { height: 250, shapes, xaxis: { title: { text: "step" } }, yaxis: axis });
  }

  // ---- the neurons of a layer at a step
  const looks = () => state.live ? current().steps : (layerOf(current(), state.layer).distributions[state.quantity] ?? []);
  async function drawLook() {
    const all = looks(), slider = $("look-step");
    slider.max = Math.max(0, all.length - 1);
    const place = state.look < 0 ? all.length - 1 : Math.min(state.look, all.length - 1);
    slider.value = place;
    const wanted = [state.run, state.layer, state.quantity, place].join();
    let found = all[place];
    if (state.live && found !== undefined) found = await state.live.distribution(current(), state.layer, state.quantity, found);
    if (wanted !== [state.run, state.layer, state.quantity, place].join()) return; // another was chosen meanwhile
    if (!found) { $("look-extremes").textContent = ""; return empty("look-figure", "Not measured at this step."); }
    slider.setAttribute("aria-valuetext", "step " + found.step);
    $("look-at").textContent = `step ${found.step.toLocaleString("en")}`;
    const edges = [...found.counts, 0].map((_, i) => 2 ** ((found.first + i - 96) / 2));
    const own = colour(state.run), unit = state.quantity === "norm" ? "" : " rad";
    const shapes = [found.least, found.most].filter(x => x > 0).map(x => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1,
      line: { color: colour(1), dash: "dot", width: 2 } }));
    draw("look-figure", [{ x: edges, y: [...found.counts, 0], type: "scatter", mode: "lines", fill: "tozeroy", fillcolor: faint(own, 0.45),
      line: { shape: "hv", color: own, width: 1.5 }, hovertemplate: "from %{x:.3g}: %{y} neurons<extra></extra>" }],
    { height: 250, shapes, showlegend: false, xaxis: { type: "log", title: { text: QUANTITY[state.quantity] }, range: logRange(edges) },
      yaxis: { title: { text: "neurons" }, rangemode: "tozero" } });
    const words = state.quantity === "norm" ? ["Smallest", "largest"] : ["Slowest", "fastest"];
    $("look-extremes").textContent = found.least_id < 0 ? ""
      : `${words[0]}: neuron ${found.least_id}, ${sig(found.least)}${unit}; ${words[1]}: neuron ${found.most_id}, ${sig(found.most)}${unit}.`;
  }

  const MOST_BOXES = 40;
  function drawBalance() {
    const run = current(), known = run.layers.filter(layer => layer.spread.q05 !== null && layer.vectors > 1);
    if (!known.length) return empty("balance-figure", "No layer's neurons were measured.");
    const worst = [...known].sort((a, b) => b.summary.imbalance - a.summary.imbalance).slice(0, MOST_BOXES);
    const rows = worst.map((_, i) => i), of = key => worst.map(layer => layer.spread[key]);
    const noise = worst.map(layer => Math.sqrt(layer.spread.noise));
    const soft = Look.of("soft"), own = colour(state.run);
    const pure = { type: "scatter", mode: "lines", name: "5–95 % of pure noise", line: { color: faint(soft, 0.45), width: 15 },
      x: noise.flatMap(s => [1 / s, s, null]), y: rows.flatMap(i => [i, i, null]), hoverinfo: "skip" };
    const boxes = { type: "box", orientation: "h", name: "neurons: 5, 25, 50, 75, 95 %", y: rows, q1: of("q25"), q3: of("q75"),
      median: rows.map(() => 1), lowerfence: of("q05"), upperfence: of("q95"), line: { color: own, width: 1.5 }, fillcolor: faint(own, 0.3),
      width: 0.55, hoverinfo: "x" };
    draw("balance-figure", [pure, boxes], { height: Math.max(240, 24 * rows.length + 120), showlegend: true,
      xaxis: { type: "log", title: { text: "rotation ÷ median of the layer" }, range: logRange(of("q05"), of("q95"), noise, [0.8, 1.25]) },
      yaxis: { autorange: "reversed", zeroline: false, showgrid: false, tickvals: rows, ticktext: labels(worst.map(layer => layer.name)) } });
    $("balance-note").textContent = known.length > worst.length ? `The ${MOST_BOXES} least balanced of ${known.length} layers; the table has all.` : "";
  }

  // Levels for lines of equal value: 1 and 3 of each decade that the grid covers.
  function levels(grid) {
    const values = grid.flat().filter(value => value > 0), found = [];
    const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++)
      for (const digit of [1, 3]) if (digit * 10 ** decade > low && digit * 10 ** decade < high) found.push(digit * 10 ** decade);
    return found.length > 9 ? found.filter((_, i) => i % 2 === 0) : found;
  }
  function drawPlane() {
    const plane = current().plane;
    if (!plane) return empty("plane-figure", "No map: theory does not know this optimizer's rule, or it has no weight decay.");
    const traces = [];
    for (const [key, name, shade, dash] of [["rotation", "equal rotation, rad per step", colour(2), "solid"],
      ["timescale", "equal timescale, steps", colour(3), "dash"]])
      levels(plane[key]).forEach((value, i) => traces.push({ type: "contour", x: plane.lr, y: plane.weight_decay, z: plane[key], name,
        contours: { type: "constraint", operation: "=", value, showlabels: true, labelfont: { size: 11, color: shade }, labelformat: "~g" },
        line: { color: shade, width: 1.3, dash }, hoverinfo: "skip", legendgroup: key, showlegend: i === 0, showscale: false }));
    state.report.runs.forEach((run, number) => {
      if (!run.plane) return;
      const { lr, weight_decay } = run.groups[run.plane.group].series, peak = lr.indexOf(finite(lr).reduce((a, b) => Math.max(a, b)));
      const name = several() ? run.name : "this run's path; ● its peak", own = colour(number);
      traces.push(line(lr, weight_decay, name, own, { legendgroup: "run" + number, showlegend: false, line: { width: 5 }, hoverinfo: "skip" }));
      traces.push({ x: [lr[peak]], y: [weight_decay[peak]], name: plain(name), legendgroup: "run" + number, type: "scatter", mode: "markers",
        marker: { size: 13, color: own, line: { color: Look.of("ground"), width: 2 } }, hovertemplate: "lr %{x:.3g}, weight decay %{y:.3g}<extra></extra>" });
    });
    const near = plane.neighbours;
    if (near.length) traces.push({ x: near.map(one => one.lr), y: near.map(one => one.weight_decay), text: near.map(one => plain(one.name)),
      name: "same norm and memory with", type: "scatter", mode: "markers+text", textposition: "top center",
      marker: { symbol: "diamond", size: 11, color: colour(4) }, hovertemplate: "%{text}: lr %{x:.3g}, weight decay %{y:.3g}<extra></extra>" });
    const range = values => [Math.log10(values[0]), Math.log10(values.at(-1))];
    draw("plane-figure", traces, { height: 460, xaxis: { type: "log", title: { text: "learning rate" }, range: range(plane.lr) },
      yaxis: { type: "log", title: { text: "weight decay" }, range: range(plane.weight_decay) } });
    $("plane-note").replaceChildren(...near.map(one => element("li", {}, `${one.name}(lr=${sig(one.lr)}, weight_decay=${sig(one.weight_decay)}) ` +
      `keeps ${one.kept.join(" and ")}${one.rotation === null ? "" : `; its rotation is ${sig(one.rotation)} times as large`}.`)));
  }

  function drawStability() {
    const runs = state.report.runs, first = runs.find(run => run.stability);
    if (!first) empty("betas-figure", "Only Adam has two averages that can be unstable.");
    else {
      const away = values => values.map(value => 1 - value), region = first.stability, x = away(region.beta2);
      const ticks = { type: "log", autorange: false, tickangle: 0, tickvals: [0.5, 0.1, 0.01, 0.001, 0.0001], ticktext: ["0.5", "0.9", "0.99", "0.999", "0.9999"] };
      const traces = [
        { x, y: x.map(() => 1), type: "scatter", mode: "lines", line: { width: 0 }, showlegend: false, hoverinfo: "skip" },
        { x, y: away(region.exact), type: "scatter", mode: "lines", fill: "tonexty", fillcolor: faint(colour(2), 0.2), name: "stable: β₁² < β₂",
          line: { color: colour(2), width: 2 }, hoverinfo: "skip" },
        { x, y: away(region.continuous), type: "scatter", mode: "lines", name: "in continuous time, C = 0", line: { color: colour(2), width: 1.5, dash: "dash" }, hoverinfo: "skip" }];
      runs.forEach((run, number) => run.stability?.betas.forEach(pair => traces.push({ x: [1 - pair.beta2], y: [1 - pair.beta1],
        type: "scatter", mode: "markers", name: plain(several() ? run.name : `(${pair.beta1}, ${pair.beta2}), margin ${sig(pair.exact_margin)}`),
        marker: { size: 13 + 3 * number, color: colour(number), symbol: number ? "circle-open" : "circle", line: { width: 2, color: colour(number) } },
        hovertemplate: `β₁ ${pair.beta1}, β₂ ${pair.beta2}: margin ${sig(pair.exact_margin)}<extra></extra>` })));
      draw("betas-figure", traces, { height: 360, showlegend: true, xaxis: { ...ticks, title: { text: "β₂" }, range: [0, -5] }, yaxis: { ...ticks, title: { text: "β₁" }, range: [0, -3.5] } });
    }
    const traces = [], shown = [];
    runs.forEach((run, number) => {
      const many = several(), measured = run.series["max_update.max.max"], bound = run.series.update_bound;
      if (!finite(measured).length) return;
      shown.push(measured, bound);
      traces.push(line(run.steps, measured, many ? run.name : "largest entry of an update ÷ lr", colour(number), { legendgroup: "run" + number }));
      if (finite(bound).length) traces.push(line(run.steps, bound, many ? run.name + ", bound" : "bound, whatever the gradients", many ? colour(number) : colour(1),
        { legendgroup: "run" + number, showlegend: !many, line: { dash: "dash" } }));
    });
    if (!traces.length) return empty("bound-figure", "The largest update was not measured.");
    draw("bound-figure", traces, { height: 360, showlegend: true, xaxis: { title: { text: "step" } }, yaxis: { type: "log", range: logRange(...shown), title: { text: "max |u|" } } });
  }

  // ---- words and the table
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
          element("span", {}, verdict.sentence), ...(verdict.remedy ? [element("span", {}, "→ " + verdict.remedy)] : []), more);
      });
      const list = element("ul", {}, ...(items.length ? items : [element("li", { className: "note" }, "Nothing to say yet.")]));
      return several() ? [element("h3", {}, swatch(number), run.name + rank(number)), list] : [list];
    });
    const notes = state.report.runs.flatMap(run => [...run.notes, ...(run.stride > 1 ? [`${several() ? run.name + ": " : ""}${run.total.toLocaleString("en")} ` +
      `samples are too many for a page; every ${run.stride}th is shown, ${run.steps.length.toLocaleString("en")} in all.`] : [])]);
    $("verdict-body").replaceChildren(...blocks, ...notes.map(note => element("p", { className: "note" }, note)));
  }
  const rank = number => number === 0 ? " (healthiest)" : number === 1 ? " (least healthy)" : "";
  const chip = (name, run) => element("button", { type: "button", className: "chip", onclick: () => { choose(run); open(name); } }, name);
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

  function rows() {
    const found = state.report.runs.flatMap((run, number) => run.layers.map(layer => ({ run, number, layer })))
      .filter(row => row.layer.name.toLowerCase().includes(state.filter.toLowerCase()));
    const [key, way] = state.sort, value = row => key === "name" ? row.layer.name : key === "shape" ? row.layer.vectors * row.layer.fan_in : row.layer.summary[key];
    if (key) found.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null); // unknown ones last, whichever the way
      return way * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
    });
    return found;
  }
  // A layer whose numbers are not finite must not look like one that was not measured.
  const shownNumber = (summary, key) => summary.diverged && (key === "rotation" || key === "norm") && summary[key] === null ? "not finite" : sig(summary[key]);
  function drawTable() {
    const heads = [["name", "layer"], ["shape", "shape"], ...COLUMNS].map(([key, label]) => {
      const mark = state.sort[0] === key ? (state.sort[1] > 0 ? " ▲" : " ▼") : "";
      const head = element("th", { scope: "col" }, element("button", { type: "button", dataset: { sort: key }, onclick: () => sortBy(key) }, label + mark));
      head.setAttribute("aria-sort", !mark ? "none" : state.sort[1] > 0 ? "ascending" : "descending");
      return head;
    });
    const off = (key, value) => /_ratio$|kappa/.test(key) && value !== null && (value > 1.5 || value < 1 / 1.5);
    const shown = rows(), body = shown.map(({ number, layer }) => element("tr", {},
      element("td", {}, ...(several() ? [swatch(number)] : []), element("button", { type: "button", className: "name", onclick: () => { choose(number); open(layer.name); } }, layer.name)),
      element("td", {}, layer.shape.join("×")),
      ...COLUMNS.map(([key]) => element("td", { className: off(key, layer.summary[key]) ? "off" : "", dataset: { key } }, shownNumber(layer.summary, key)))));
    const table = $("layers-table"), focused = table.contains(document.activeElement) ? document.activeElement.textContent : null;
    table.replaceChildren(element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
    if (focused) [...table.querySelectorAll("button")].find(button => button.textContent === focused)?.focus();
    $("table-count").textContent = `${shown.length} of ${state.report.runs.length * current().layers.length} rows`;
  }
  function sortBy(key) {
    state.sort = [key, state.sort[0] === key ? -state.sort[1] : key === "name" ? 1 : -1];
    drawTable();
    document.querySelector(`[data-sort="${key}"]`).focus();
  }
  function drawConfig() {
    $("config").replaceChildren(...state.report.runs.map((run, number) => element("details", { open: !several() && !state.live },
      element("summary", {}, several() ? swatch(number) : "", `Configuration of ${run.name}`), element("pre", {}, JSON.stringify(run.config, null, 2)))));
  }

  // ---- putting it together
  function choose(number) {
    if (number === state.run) return;
    state.run = number; state.look = -1;
    for (const select of document.querySelectorAll("select.run")) select.value = number;
    drawHeat(); drawBalance(); drawPlane();
    if (state.layer) drawLayer();
  }
  function drawFigures() {
    drawEquilibrium(); drawHeat(); drawBalance(); drawPlane(); drawStability();
    if (state.layer) drawLayer();
  }
  function drawWords() { drawHead(); drawVerdict(); drawTable(); }
  function fillChoices() {
    const option = (value, label) => element("option", { value }, label);
    $("layer-choice").replaceChildren(option("", "choose a layer"), ...current().layers.map(layer => option(layer.name, layer.name)));
    $("layer-choice").value = state.layer ?? "";
    for (const select of document.querySelectorAll("select.run")) {
      select.replaceChildren(...state.report.runs.map((run, number) => option(number, run.name)));
      select.value = state.run;
      select.parentElement.hidden = !several();
    }
  }
  function redraw() { // at most once per frame, however many updates came
    cancelAnimationFrame(state.redraw);
    state.redraw = requestAnimationFrame(() => { drawWords(); drawFigures(); });
  }
  function listen() {
    $("layer-choice").addEventListener("change", event => event.target.value && open(event.target.value));
    for (const select of document.querySelectorAll("select.run")) select.addEventListener("change", event => choose(Number(event.target.value)));
    $("filter").addEventListener("input", event => { state.filter = event.target.value; drawTable(); });
    $("look-step").addEventListener("input", event => { state.look = Number(event.target.value); drawLook(); });
    $("look-quantity").addEventListener("change", event => { state.quantity = event.target.value; drawLook(); });
    Look.listeners.push(() => { drawWords(); drawFigures(); }); // at once: a printer does not wait
    let width = innerWidth, later = 0;
    addEventListener("resize", () => { // once it has come to rest
      clearTimeout(later);
      later = setTimeout(() => { if (width !== innerWidth) drawFigures(); width = innerWidth; }, 100);
    });
  }
  function show(report, live = null) {
    const begun = state.report !== null;
    Object.assign(state, { report, live });
    fillChoices();
    drawWords(); drawConfig(); drawFigures();
    if (!begun) listen();
    document.body.dataset.ready = "yes";
  }

  // New samples of a run that is being written: arrays grow, and the rest is replaced where the server sent it.
  function grow(update) {
    const run = state.report.runs.find(one => one.id === update.id);
    if (!run || update.from !== run.steps.length) return false;
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
  return { show, grow, state };
})();
