// The most probable next tokens as a small table with bars.

import { h, percent } from "./ui.js";
import { quoted } from "./token-strip.js";

/** `rows` are {text, p, right}; the right answer, if it is known, is marked. */
export function nextTokens(title, rows, note = "") {
  const line = ({ text, p, right }) => {
    const bar = h("span", { class: "chance" });
    bar.style.setProperty("--p", p.toFixed(4));
    return h(
      "tr",
      { class: right ? "right" : null },
      h("td", {}, quoted(text), right ? h("small", {}, " right answer") : null),
      h("td", {}, bar),
      h("td", {}, percent(p)),
    );
  };
  return h(
    "div",
    { class: "next" },
    h("h3", {}, title),
    note ? h("p", { class: "hint" }, note) : "",
    h("table", {}, h("tbody", {}, ...rows.map(line))),
  );
}
