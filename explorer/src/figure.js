// A panel that holds one figure, and how a figure of heads answers to pointer and keys.

import { canvas } from "./chart.js";
import { choose, light, store } from "./store.js";
import { announce, csvFile, panel, svgFile, tip } from "./ui.js";
import { moveWith, sentence } from "./words.js";

/**
 * A panel with one drawing, to download as CSV and SVG. `label` describes it to screen readers; `file` names its files
 * and may be a function if the name depends on the selection; `table` names the CSV file if that has another name.
 */
export function figurePanel(id, title, hint, { file, csv, table = file, label = "", interactive, tools, inner }) {
  const svg = canvas(label, { interactive, name: id });
  const named = (name) => (typeof name === "function" ? name() : name);
  const shown = panel(id, title, hint, {
    csv: csv && (() => csvFile(named(table), csv())),
    svg: () => svgFile(named(file), svg.node()),
    tools,
    inner,
  });
  shown.body.append(svg.node());
  return { svg, shown };
}

/** Hover lights the head under the pointer, click selects it, arrow keys move through heads and layers. */
export function answerHeads(svg, source, under, tips) {
  svg.on("pointermove", (event) => {
    const at = under(event);
    light(at === undefined ? null : source.labels[at]);
    tip(at === undefined ? null : tips(at, event), event.clientX, event.clientY);
  });
  svg.on("pointerleave", () => (light(null), tip(null)));
  svg.on("click", (event) => {
    const at = under(event);
    if (at === undefined) return;
    choose(source.labels[at], event.shiftKey);
    announce(sentence(source, at, store.state));
  });
  svg.on("keydown", (event) => moveWith(event, source));
}
