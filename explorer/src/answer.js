// What the model says next: the ten most probable tokens, and a continuation on request.

import { live, promptOf } from "./live-state.js";
import { nextTokens } from "./next-tokens.js";
import { h, panel } from "./ui.js";

const LENGTH = 16; // tokens of a continuation

export function answerPanel(ask) {
  const shown = panel("answer", "The answer", "The most probable next tokens after the prompt.");
  const rows = h("div", { class: "nexts" });
  const written = h("p", { class: "written", "aria-live": "polite" });
  const more = h("button", { type: "button", onclick: go }, `continue by ${LENGTH} tokens`);
  shown.body.append(rows, h("div", { class: "picks" }, more), written);

  async function go() {
    more.disabled = true;
    written.textContent = "…";
    try {
      const found = await ask("continue", { ...promptOf(live()), number: LENGTH });
      if (found) written.textContent = found.text;
    } catch (error) {
      written.textContent = error.message;
    }
    more.disabled = false;
  }

  function show(answer) {
    rows.replaceChildren(nextTokens("Next token", answer.next));
    written.textContent = "";
  }
  return { ...shown, show };
}
