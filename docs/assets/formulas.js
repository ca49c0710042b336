// Formulas within a line are plain text, such as w_{t-k} or e^(-ak). Draw their indices and powers.
const INDEX = /((?:lr|\p{L})\p{M}?\d?[²³⁴]?)_(?:\{([^{}]+)\}|([\p{L}\d⊥]+))/u;
const POWER = /\^(?:\(((?:[^()]|\([^()]*\))*)\)|(-?[\p{L}\d½¼]+(?:\.\d+)?))/u;
const SCRIPTS = new RegExp(String.raw`(?<![\p{L}\d_])${INDEX.source}|${POWER.source}`, "gu");

/** @param {Text} text */
function drawScripts(text) {
  const parts = [];
  let end = 0;
  for (const match of text.data.matchAll(SCRIPTS)) {
    const [whole, base, braced, index, bracketed, power] = match;
    const script = document.createElement(base ? "sub" : "sup");
    script.textContent = base ? (braced ?? index) : (bracketed ?? power);
    parts.push(text.data.slice(end, match.index) + (base ?? ""), script);
    end = match.index + whole.length;
  }
  if (parts.length) text.replaceWith(...parts, text.data.slice(end));
}

document.addEventListener("DOMContentLoaded", () => {
  const walker = document.createTreeWalker(document.querySelector("article") ?? document.body, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    if (!text.parentElement.closest("pre, code, script, style, .arithmatex, .doc")) drawScripts(text);
  }
});

// Typeset the formulas of a page, which arithmatex marks by \( \) and \[ \].
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    renderMathInElement(element, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
      throwOnError: true,
    });
  }
});
