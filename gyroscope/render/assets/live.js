"use strict";
// The page of runs that are being written: events from the server, or requests if events do not arrive.
(() => {
  const ids = new URLSearchParams(location.search).getAll("run");
  const EVERY = 2000, PATIENCE = 3;
  /** @type {Record<string, Position>} */
  let at = {};
  /** @type {EventSource | null} */
  let source = null;
  let failures = 0;
  /** @type {(text: string) => void} */
  const say = text => { document.getElementById("message").textContent = text; };
  const query = () => ids.map(id => `run=${encodeURIComponent(id)}` + (at[id] ? `&at=${at[id].join(".")}` : "")).join("&");
  /** @type {(address: string) => Promise<any>} */
  const ask = async address => {
    const answer = await fetch(address), found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return found;
  };
  /** @type {LiveData} */
  const live = {
    distribution: (run, layer, quantity, step) =>
      ask("distribution?" + new URLSearchParams({ run: run.id, layer, quantity, step: String(step) })).catch(() => null),
  };
  /** @param {Update} update */
  function take(update) {
    if (update.problem) return say(update.problem);
    say("");
    if (update.reset || !Gyroscope.grow(update)) return load();
    at[update.id] = update.at;
  }
  async function load() {
    source?.close();
    try {
      const found = await ask("data?" + ids.map(id => `run=${encodeURIComponent(id)}`).join("&"));
      at = found.at;
      say("");
      Gyroscope.show(found.report, live);
    } catch (error) {
      say(/** @type {Error} */ (error).message);
      return setTimeout(load, EVERY);
    }
    if (new URLSearchParams(location.search).has("poll") || failures >= PATIENCE) poll(); else listen();
  }
  function listen() {
    const stream = source = new EventSource("events?" + query());
    stream.onmessage = event => { failures = 0; take(JSON.parse(event.data)); };
    stream.onerror = () => { stream.close(); failures += 1; setTimeout(load, EVERY); };
  }
  async function poll() {
    try {
      for (const update of await ask("update?" + query())) {
        take(update);
        if (update.reset) return;
      }
    } catch (error) { say(/** @type {Error} */ (error).message); }
    setTimeout(poll, EVERY);
  }
  Look.start();
  load();
})();
