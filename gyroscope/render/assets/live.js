"use strict";
// The page of runs that are being written: all its data again whenever they have changed.
(() => {
  const EVERY = 3000;
  const query = new URLSearchParams(new URLSearchParams(location.search).getAll("run").map(id => ["run", id]));
  let tag = "";
  /** @type {(text: string) => void} */
  const say = text => { document.getElementById("message").textContent = text; };
  /** @type {(address: string, asked: Record<string, string>) => Promise<any>} */
  const ask = (address, asked) => fetch(address + "?" + new URLSearchParams(asked)).then(answer => answer.ok ? answer.json() : null).catch(() => null);
  /** @type {LiveData} */
  const live = {
    series: (run, layer) => ask("layer", { run: run.id, layer }),
    distribution: (run, layer, quantity, step) => ask("distribution", { run: run.id, layer, quantity, step: String(step) }),
  };
  async function load() {
    try {
      const answer = await fetch("data?" + query, { headers: { "If-None-Match": tag } });
      if (answer.status !== 304) {
        const found = await answer.json();
        if (!answer.ok) throw new Error(found.error);
        tag = answer.headers.get("ETag") ?? "";
        Gyroscope.show(found, live);
      }
      say("");
    } catch (error) { say(/** @type {Error} */ (error).message); }
    setTimeout(load, EVERY);
  }
  Look.start();
  load();
})();
