// The copy button takes the lines that a person types, without their prompts, and leaves out what is printed.
const PROMPT = /^(>>> |\.\.\.(?: |$)|\$ )/;

document.addEventListener(
  "click",
  (event) => {
    const button = event.target instanceof Element && event.target.closest("button[data-clipboard-target]");
    if (!button) return;
    const lines = document.querySelector(button.dataset.clipboardTarget).textContent.split("\n");
    const typed = lines.filter((line, number) => PROMPT.test(line) || lines[number - 1]?.endsWith("\\"));
    if (PROMPT.test(lines[0])) button.dataset.clipboardText = typed.map((line) => line.replace(PROMPT, "")).join("\n");
  },
  { capture: true },
);
