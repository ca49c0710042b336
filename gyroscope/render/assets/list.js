"use strict";
// The list of runs, requested repeatedly. Boxes that were ticked stay ticked.
(() => {
  const EVERY = 3000;
  /** @type {Set<string>} */
  const chosen = new Set();
  /** @type {(label: string, ...children: (Node | string)[]) => HTMLTableCellElement} */
  const cell = (label, ...children) => {
    const one = document.createElement("td");
    one.dataset.label = label;
    one.append(...children);
    return one;
  };
  /** @type {(value: number) => string} */
  const number = value => value.toLocaleString("en");
  /** @param {number} seconds */
  function ago(seconds) {
    if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s ago`;
    return seconds < 5400 ? `${Math.round(seconds / 60)} min ago` : seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
  }
  /** @param {ListedRun} run */
  function row(run) {
    const link = document.createElement("a"), box = document.createElement("input"), one = document.createElement("tr");
    link.textContent = run.name;
    link.href = "view?run=" + encodeURIComponent(run.id);
    Object.assign(box, { type: "checkbox", name: "run", value: run.id, checked: chosen.has(run.id), ariaLabel: `compare ${run.name}` });
    box.addEventListener("change", () => chosen[box.checked ? "add" : "delete"](run.id));
    const state = cell("state", run.problem || run.status);
    state.className = run.status === "running" ? "good" : run.problem || run.status === "failed" ? "warn" : "";
    if (run.problem) { // a sentence, over all columns
      Object.assign(state, { colSpan: 6, className: "warn sentence" });
      one.append(cell("run", run.name), state);
      return one;
    }
    const settings = document.createElement("small");
    settings.textContent = run.settings;
    one.append(cell("run", link, settings), state, cell("final loss", run.loss), cell("run length", run.run_length),
      cell("step", number(run.step)), cell("last written", ago(run.idle)), cell("compare", box));
    return one;
  }
  async function load() {
    try {
      const runs = await (await fetch("runs")).json();
      const focused = /** @type {HTMLInputElement | null} */ (document.activeElement)?.value;
      document.getElementById("runs").replaceChildren(...runs.map(row));
      if (focused) document.querySelector(`input[value="${CSS.escape(focused)}"]`)?.focus();
      document.getElementById("message").textContent = runs.length ? "" : "No runs yet. A run appears here as soon as a tracker writes below this directory.";
      document.body.dataset.ready = "yes";
    } catch { document.getElementById("message").textContent = "The server does not answer."; }
    setTimeout(load, EVERY);
  }
  Look.start();
  load();
})();
