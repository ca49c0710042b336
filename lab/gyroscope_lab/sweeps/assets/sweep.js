"use strict";
// The page of a sweep, with data in the layout of gyroscope_lab/sweeps/data.py.
let sweep = /** @type {SweepData} */ (/** @type {unknown} */ (null)); // set before anything is drawn
/** @type {[string, number]} */
const sort = ["mean", 0];
const MOST_MAPS = 12, LABEL_WIDTH = 52; // maps of arms, the best first, and pixels that a number in a cell needs
/** @type {(value: Setting) => string} */
const shown = value => value === null ? "default" : typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value);
/** @type {(x: Known) => string} */
const score = x => x === null ? "–" : Math.abs(x) >= 1000 || (x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(2) : x.toFixed(4);
/** @type {(name: string) => string} */
const spaced = name => name.replaceAll("_", " ");
/** @type {(setting: SettingData, names?: string[]) => string} */
const settingsText = (setting, names = Object.keys(sweep.axes)) => names.map(name => `${spaced(name)} ${shown(setting.settings[name])}`).join(", ");
/** @type {(arm: ArmData) => string} */
const armName = arm => arm.name || "all settings";
/** @type {(x: number, y: number) => number} */
const better = (x, y) => sweep.higher_is_better ? y - x : x - y;
/** @type {(id: string, ...children: (Node | string)[]) => void} */
const fill = (id, ...children) => $(id).replaceChildren(...children);

// The reason why a setting has no mean, or its mean with its seeds.
/** @param {SettingData} setting */
function hover(setting) {
  const seeds = setting.trials.map(trial => `seed ${trial.seed}: ${trial.problem ? plain(trial.problem) : trial.ended ? score(trial.value) : "not run yet"}`);
  const mean = setting.n ? `<b>${score(setting.mean)}</b>${setting.interval === null ? "" : ` ± ${score(setting.interval)} (95 %)`}, n = ${setting.n}<br>` : "";
  return `${mean}${plain(settingsText(setting))}<br>${seeds.slice(0, 12).join("<br>")}${setting.page ? "<br>click: its runs" : ""}`;
}
/** @param {string} id */
function follow(id) { // a click on a point or a cell opens the page of its runs
  $(id).removeAllListeners("plotly_click");
  $(id).on("plotly_click", event => {
    const page = sweep.settings[event.points[0].customdata]?.page;
    if (page) location.href = page;
  });
}

// ---- two axes: a map for each arm, in the same colours
// Depth of a cell's colour: 1 for the best, one half for the median setting. One bad setting does not hide differences of the others.
/** @param {PlacedSetting[]} known */
function depths(known) {
  const distances = known.map(setting => Math.abs(setting.mean - sweep.settings[sweep.best].mean)).sort((a, b) => a - b);
  const typical = distances[Math.floor(distances.length / 2)] || distances.at(-1) || 1;
  return new Map(known.map(setting => [setting.place, typical / (typical + Math.abs(setting.mean - sweep.settings[sweep.best].mean))]));
}
/** @param {string} id @param {number} arm @param {Map<number, number>} depth */
function drawMap(id, arm, depth) {
  const [across, up] = sweep.drawn, own = sweep.settings.map((setting, place) => ({ ...setting, place })).filter(setting => setting.arm === arm);
  const values = (/** @type {string} */ name) => [...new Set(own.map(setting => setting.settings[name]))].sort((a, b) => a - b);
  const [xs, ys] = [values(across), values(up)];
  const cells = ys.map(y => xs.map(x => own.find(setting => setting.settings[across] === x && setting.settings[up] === y) ?? null));
  /** @type {(make: (cell: PlacedSetting) => any) => any[][]} */
  const each = make => cells.map(row => row.map(cell => cell && make(cell)));
  const text = each(cell => cell.n ? score(cell.mean) : cell.failures ? "failed" : "…");
  const map = { type: "heatmap", x: xs.map(shown), y: ys.map(shown), z: each(cell => depth.get(cell.place) ?? null), zmin: 0, zmax: 1,
    colorscale: [[0, Look.of("middle")], [1, Look.dark ? "#2f8fce" : "#0072b2"]], xgap: 2, ygap: 2, hoverongaps: false, showscale: false,
    customdata: each(cell => cell.place), text: each(hover), hovertemplate: "%{text}<extra></extra>", hoverlabel: { align: "left" } };
  const roomy = ($(id).clientWidth - 80) / xs.length > LABEL_WIDTH;
  /** @type {(cell: PlacedSetting, words: string) => string} */
  const label = (cell, words) => (cell.place === sweep.best ? "★ " : "") + (roomy ? words : "");
  const annotations = cells.flatMap((row, i) => row.flatMap((cell, j) => cell ? [{ x: j, y: i, showarrow: false,
    text: label(cell, text[i][j]), font: { size: 12, color: ink(depth.get(cell.place)) } }] : []));
  const best = sweep.arms[arm].best, mark = own.find(setting => setting.place === best);
  const [j, i] = mark ? [xs.indexOf(mark.settings[across]), ys.indexOf(mark.settings[up])] : [-1, -1];
  const shapes = mark ? [{ type: "rect", x0: j - 0.49, x1: j + 0.49, y0: i - 0.49, y1: i + 0.49, line: { color: Look.of("text"), width: best === sweep.best ? 3 : 1.5 } }] : [];
  const axis = (/** @type {string} */ name) => ({ type: "category", title: { text: spaced(name) }, showgrid: false, tickangle: roomy || name === up ? 0 : -90 });
  draw(id, [map], { height: Math.max(220, Math.min(700, 44 * ys.length + 110)), dragmode: false, annotations, shapes, xaxis: axis(across), yaxis: axis(up) });
  follow(id);
}
// Ink that can be read on a cell: light on the saturated half of the scale.
/** @type {(depth: number | undefined) => string} */
const ink = depth => depth === undefined ? Look.of("soft") : depth > 0.55 || Look.dark ? "#ffffff" : Look.of("text");

// ---- one axis: a line for each arm. No axis: a point for each setting
/** @type {(settings: SettingData[]) => Trace} */
const bars = settings => ({ array: settings.map(setting => setting.interval ?? 0), thickness: 1.5, width: 5 });
// Only from the seeds, because an interval of two or three seeds is so wide that it would flatten everything else.
/** @param {SettingData[]} settings */
function scoreRange(settings) {
  const all = finite(settings.flatMap(setting => setting.trials.map(trial => trial.value)));
  if (!all.length) return undefined;
  const low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b)), margin = 0.08 * (high - low) || 0.01 * Math.abs(high) || 1;
  return [low - margin, high + margin];
}
/** @type {(settings: PlacedSetting[]) => Trace} */
const marked = settings => ({ size: settings.map(setting => setting.place === sweep.best ? 16 : 8), opacity: 1, symbol: settings.map(setting => setting.place === sweep.best ? "star" : "circle") });
/** @type {(settings: PlacedSetting[]) => Trace} */
const points = settings => ({ customdata: settings.map(setting => setting.place), text: settings.map(hover), hovertemplate: "%{text}<extra></extra>",
  hoverlabel: { align: "left" } });
/** @param {string} id @param {PlacedSetting[]} settings */
function drawLine(id, settings) {
  const [across] = sweep.drawn, values = settings.map(setting => setting.settings[across]);
  const log = values.every(value => value > 0) && Math.max(...values) >= 8 * Math.min(...values);
  const traces = sweep.arms.map((arm, number) => {
    const own = settings.filter(setting => setting.arm === number && setting.n).sort((a, b) => a.settings[across] - b.settings[across]);
    return { type: "scatter", mode: "lines+markers", name: plain(armName(arm)), x: own.map(setting => setting.settings[across]), y: own.map(setting => setting.mean),
      error_y: bars(own), marker: marked(own), line: { color: colour(number), width: 2 }, ...points(own) };
  });
  const edges = log ? [Math.min(...values) / 1.5, Math.max(...values) * 1.5].map(Math.log10) : undefined;
  draw(id, traces, { height: 420, xaxis: { title: { text: spaced(across) }, ...(log ? { type: "log", range: edges } : {}) },
    yaxis: { title: { text: spaced(sweep.metric) }, range: scoreRange(settings) } });
  follow(id);
}
/** @type {(name: string) => string} */
const shortened = name => plain(name.length > 40 ? name.slice(0, 39) + "…" : name);
/** @param {string} id @param {PlacedSetting[]} settings */
function drawPoints(id, settings) {
  const own = settings.filter(setting => setting.n).sort((a, b) => better(a.mean, b.mean));
  const trace = { type: "scatter", mode: "markers", x: own.map(setting => setting.mean), y: own.map((_, i) => i), error_x: bars(own),
    marker: { ...marked(own), color: colour(0) }, ...points(own) };
  draw(id, [trace], { height: 120 + 34 * own.length, xaxis: { title: { text: spaced(sweep.metric) }, range: scoreRange(own) },
    yaxis: { autorange: "reversed", zeroline: false, tickvals: own.map((_, i) => i), ticktext: own.map(setting => shortened(armName(sweep.arms[setting.arm]))) } });
  follow(id);
}
function drawResults() {
  const settings = sweep.settings.map((setting, place) => ({ ...setting, place })), known = settings.filter(setting => setting.n);
  if (!known.length) return fill("maps", element("p", {}, "No trial has a score yet."));
  if (sweep.drawn.length < 2) {
    if (!$("results-figure")) fill("maps", element("div", { id: "results-figure", className: "figure" }));
    return (sweep.drawn.length ? drawLine : drawPoints)("results-figure", settings);
  }
  const arms = sweep.arms.map((arm, number) => ({ ...arm, number })).filter(arm => arm.best !== null)
    .sort((a, b) => better(settings[a.best].mean, settings[b.best].mean)).slice(0, MOST_MAPS);
  if (!$("map-" + arms[0].number)) fill("maps", ...arms.map(arm => element("div", {}, element("h3", {}, armName(arm)), element("div", { id: "map-" + arm.number, className: "figure" }))));
  const depth = depths(known);
  for (const arm of arms) drawMap("map-" + arm.number, arm.number, depth);
}

// ---- words and tables
/** @param {Width} width */
function regionText(width) {
  const values = width.low === width.high ? shown(width.low) : `${shown(width.low)} to ${shown(width.high)}`;
  const open = width.at_low_end || width.at_high_end ? "≥ " : "";
  return values + (width.decades === null ? "" : `: ${open}${width.decades.toFixed(1)} decades`);
}
function drawWords() {
  const top = sweep.settings[sweep.best], failed = sweep.settings.reduce((sum, setting) => sum + setting.failures, 0);
  const left = sweep.planned - sweep.ended;
  fill("about", element("p", {}, `${sweep.planned.toLocaleString("en")} trials: ${sweep.ended - failed} succeeded, ${failed} failed` + (left ? `, ${left} not run yet.` : ".")),
    element("p", {}, element("code", {}, Object.entries(sweep.axes).map(([name, values]) => `${name} = ${values.map(shown).join(", ")}`).join("; "))));
  fill("best", top ? `Best ${spaced(sweep.metric)}: ${score(top.mean)}${top.interval === null ? "" : ` ± ${score(top.interval)}`} (n = ${top.n}) at ${settingsText(top)}.` : "No setting has a score.");
  const linked = sweep.settings.some(setting => setting.page);
  const what = sweep.drawn.length > 1 ? "Mean over seeds. ★ marks the best of all, a frame the best of its arm." : "Mean over seeds with its 95 % interval. ★ marks the best of all.";
  fill("map-note", `${what} ${sweep.higher_is_better ? "Higher" : "Lower"} is better. ${linked ? "Click to open the runs." : ""}`);
  // Without an axis to draw along, an arm is one setting. The table of settings has everything except the tests.
  for (const drawn of [$("arms-table").parentElement, $("arms-note")]) if (drawn) drawn.hidden = !sweep.drawn.length;
  if (!sweep.drawn.length) fill("arms-title", "Is the best better than the others?");
  $("arms").hidden = !sweep.drawn.length && !sweep.comparisons.length;
  fill("arms-note", `Good: a mean within ${sweep.tolerance * 100} % of the arm's best. The good region of an axis is the contiguous range around the best, with other settings re-tuned. ≥ marks a range that reaches an end of the grid.`);
  fill("tests", ...sweep.comparisons.map(test => {
    const [first, second] = [test.first, test.second].map(number => armName(sweep.arms[number]));
    const p = test.p_value === null ? "one seed each is too few for a test" : `Welch's test gives p = ${sig(test.p_value, 2)}`;
    return element("li", {}, `${first} against ${second}, each at its best settings: ${test.difference > 0 ? "+" : ""}${score(test.difference)} (${p}).`);
  }));
}
/** @type {(...children: (Node | string | number)[]) => HTMLElement} */
const td = (...children) => element("td", {}, ...children.map(child => typeof child === "number" ? String(child) : child));
/** @type {(...children: (Node | string)[]) => HTMLElement} */
const text = (...children) => element("td", { className: "sentence" }, ...children);
/** @type {(setting: SettingData, text: string) => HTMLElement | string} */
const link = (setting, text) => setting.page ? element("a", { href: setting.page }, text) : text;
function drawTables() {
  const axes = Object.keys(sweep.axes), place = new Map(sweep.settings.map((setting, i) => [setting, i]));
  /** @type {["mean" | "interval" | "deviation", string][]} */
  const scores = [["mean", "mean"], ["interval", "± 95 %"], ["deviation", "deviation"]];
  /** @type {Column<SettingData>[]} */
  const columns = [
    ...axes.map(name => ({ key: name, label: spaced(name), first: 1, value: (/** @type {SettingData} */ setting) => setting.settings[name],
      cell: (/** @type {SettingData} */ setting) => td(shown(setting.settings[name])) })),
    ...scores.map(([key, label]) => ({ key, label, first: sweep.higher_is_better ? -1 : 1,
      value: (/** @type {SettingData} */ setting) => setting[key], cell: (/** @type {SettingData} */ setting) => element("td", { className: place.get(setting) === sweep.best ? "off" : "", dataset: { key } }, score(setting[key])) })),
    { key: "n", label: "n", value: setting => setting.n, cell: setting => td(setting.n) },
    { key: "failures", label: "failed", value: setting => setting.failures, cell: setting => td(setting.failures) },
    { key: "p_best", label: "p against best", value: setting => setting.p_best, cell: setting => td(sig(setting.p_best, 2)) },
    ...(sweep.drawn.length ? [{ key: "good", label: "good", value: (/** @type {SettingData} */ setting) => Number(setting.good), cell: (/** @type {SettingData} */ setting) => td(setting.good ? "✓" : "") }] : []),
    { key: "page", label: "runs", value: setting => setting.page, cell: setting => td(link(setting, setting.page ? "open" : "–")) },
  ];
  drawRows($("settings-table"), columns, sweep.settings, sort, drawTables);
  // Cells have their heading as an attribute, because a phone shows one below the other.
  /** @type {(id: string, labels: string[], rows: HTMLElement[][]) => void} */
  const fillTable = (id, labels, rows) => fill(id, element("thead", {}, element("tr", {}, ...labels.map(label => element("th", { scope: "col" }, label)))),
    element("tbody", {}, ...rows.map(cells => element("tr", {}, ...cells.map((cell, i) => {
      cell.dataset.label = labels[i];
      return cell;
    })))));
  fillTable("arms-table", ["arm", "mean", "± 95 %", "n", "good settings", ...(sweep.drawn.length ? ["best settings"] : []), ...sweep.drawn.map(name => `good ${spaced(name)}`)],
    sweep.arms.map(arm => {
      const top = sweep.settings[arm.best];
      if (!top) return [td(armName(arm)), td("no score")];
      return [td(armName(arm)), td(score(top.mean)), td(score(top.interval)), td(top.n), td(`${arm.good} of ${arm.settings}`),
        ...(sweep.drawn.length ? [text(link(top, settingsText(top, sweep.drawn)))] : []), ...arm.widths.map(width => text(regionText(width)))];
    }));
  const failures = sweep.settings.flatMap(setting => setting.trials.filter(trial => trial.problem).map(trial => ({ setting, trial })));
  $("failures").hidden = !failures.length;
  fillTable("failures-table", [...axes.map(spaced), "seed", "reason"], failures.map(({ setting, trial }) =>
    [...axes.map(name => td(shown(setting.settings[name]))), td(trial.seed), element("td", { className: "sentence bad" }, trial.problem)]));
}
/** @param {SweepData} data */
function show(data) {
  sweep = data;
  sort[1] = sweep.higher_is_better ? -1 : 1; // the best first
  const all = () => { drawWords(); drawTables(); drawResults(); };
  all();
  Look.listeners.push(all);
  onResize(drawResults);
  document.body.dataset.ready = "yes";
}
const Gyroscope = { show };
