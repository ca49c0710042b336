"use strict";
// Light and dark. The reader's system decides until the button is pressed. Print is always light.
/** @type {Theme} */
const Look = {
  listeners: [],
  colours: [], // set by render/theme.py
  chosen: null, // by the button
  dark: false, // as painted
  paper: false, // the width of a sheet, see theme.css. Figures are drawn for it, because a printer does not shrink them
  system: matchMedia("(prefers-color-scheme: dark)"),
  get wanted() { return Look.chosen ?? Look.system.matches; },
  of(name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); },
  paint(dark = Look.wanted) {
    Look.dark = dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    document.documentElement.classList.toggle("paper", Look.paper);
    for (const button of document.querySelectorAll("button.theme")) {
      button.textContent = dark ? "Light" : "Dark";
      button.setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} colours`);
    }
    for (const listener of Look.listeners) listener();
  },
  // Colours of a Plotly layout: the same text, background and lines as the page.
  layout() {
    const axis = { gridcolor: Look.of("line"), linecolor: Look.of("line"), zerolinecolor: Look.of("line") };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", axis,
      font: { color: Look.of("text"), family: "system-ui, sans-serif", size: 13 },
      hoverlabel: { bgcolor: Look.of("card"), bordercolor: Look.of("line"), font: { color: Look.of("text") } },
    };
  },
  // The lighter one of a pair of colours on a dark background.
  shade: colour => [["#0072b2", "#4aa8e0"], ["#999999", "#b5b5b5"]].find(pair => pair.includes(colour))?.[Number(Look.dark)] ?? colour,
  // Repaint figures that were drawn elsewhere.
  figures() {
    for (const figure of /** @type {NodeListOf<Figure>} */ (document.querySelectorAll(".js-plotly-plot"))) {
      const { axis, ...layout } = Look.layout();
      Object.assign(layout, Look.paper ? { width: figure.parentElement?.clientWidth } : { width: null, autosize: true });
      for (const name of Object.keys(figure.layout ?? {}))
        if (/^[xy]axis/.test(name)) for (const [key, value] of Object.entries(axis)) layout[`${name}.${key}`] = value;
      const shades = (/** @type {string} */ part) => figure.data.map(trace => Look.shade(trace[part]?.color));
      Plotly.update(figure, { "line.color": shades("line"), "marker.color": shades("marker") }, layout);
    }
  },
  // Rows of a family of layers open and close by a click on its name.
  families() {
    for (const button of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("button.family")))
      button.addEventListener("click", () => {
        const isOpen = button.getAttribute("aria-expanded") === "true";
        button.setAttribute("aria-expanded", String(!isOpen));
        const rows = button.closest("table")?.querySelectorAll(`[data-member="${button.dataset.family}"]`) ?? [];
        for (const row of /** @type {Iterable<HTMLElement>} */ (rows)) row.hidden = isOpen;
      });
  },
  start() {
    Look.system.addEventListener("change", () => Look.paint());
    addEventListener("beforeprint", () => { Look.paper = true; Look.paint(false); });
    addEventListener("afterprint", () => { Look.paper = false; Look.paint(); });
    for (const button of document.querySelectorAll("button.theme"))
      button.addEventListener("click", () => { Look.chosen = !Look.wanted; Look.paint(); });
    Look.paint();
  },
};
