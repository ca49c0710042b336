"use strict";
// A page in a file contains Plotly and its data compressed. Unpack both, then draw.
(async () => {
  /** @type {(id: string) => Promise<string>} */
  const unpack = async id => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), letter => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  Look.start();
  if (!("DecompressionStream" in window)) {
    document.querySelector("main").textContent = "This page needs a browser of 2023 or later.";
    return;
  }
  const script = document.createElement("script");
  script.textContent = await unpack("packed-plotly");
  document.head.append(script);
  Gyroscope.show(JSON.parse(await unpack("packed-data")));
})();
