// The first prompt: blocks outlined, query and answer marked, shaded by the attention of the selected head.

import { max } from "d3-array";
import { colours } from "./chart.js";
import { selectedIn, store } from "./store.js";
import { csvFile, h, panel, percent } from "./ui.js";
import { isPart } from "./words.js";

export function prompt(source) {
  const { pieces, target, says, query, of, tokens } = source.prompt;
  const spans = [];
  const text = h("div", { class: "text", tabindex: 0, role: "region", "aria-label": "The prompt" });
  pieces.forEach((piece, at) => {
    const lead = piece.text.match(/^\s*/)[0];
    const last = query && at === pieces.length - 1;
    if (piece.block === null && !last) return text.append(piece.text);
    const mark = h("span", { class: last ? "query" : `block${piece.block === target ? " target" : ""}` });
    mark.append(
      ...(piece.block === target && says
        ? answerIn(piece.text.slice(lead.length), says)
        : [piece.text.slice(lead.length) || "␣"]),
    );
    if (last) mark.append(h("small", {}, "query"));
    if (piece.block !== null) {
      mark.dataset.tip = "";
      spans[piece.block] = mark;
    }
    text.append(lead, mark);
  });
  if (says) text.append(" ", h("span", { class: "answer" }, says.trim(), h("small", {}, "right answer")));
  const shown = panel("prompt", "The prompt", "", { csv: () => csvFile(`${source.name}-blocks`, rows()) });
  shown.body.append(text);
  const selected = () => selectedIn(source).at(-1);
  const rows = () =>
    spans.map((span, block) => ({
      block: block + 1,
      says: span.textContent,
      attention: selected() === undefined ? null : source.attention(selected())[block],
    }));

  function draw() {
    const at = selected();
    const attention = at === undefined ? null : source.attention(at);
    const top = attention ? max(attention) || 1 : 1;
    const shadeOf = colours().shade;
    spans.forEach((span, block) => {
      span.style.backgroundColor = attention && attention[block] ? shadeOf(attention[block] / top) : "";
      span.explain = () =>
        attention
          ? `Block ${block + 1}: ${percent(attention[block])} of the attention of head ${source.labels[at]}`
          : `Block ${block + 1}`;
    });
    const whole = attention ? attention.reduce((sum, share) => sum + (Number.isNaN(share) ? 0 : share), 0) : 0;
    const shade = attention
      ? ` Shading: attention of ${isPart(source, store.state) ? "the whole " : ""}head ${source.labels[at]}, at most ${percent(top)} on one block, ${percent(whole)} on all blocks.`
      : "";
    shown.rehint(`The first of ${of} prompts: ${tokens} tokens, ${source.blocks} blocks outlined.${shade}`);
  }
  return { ...shown, draw, mark: draw, light() {} };
}

/** The text of a block with the answer in bold. */
function answerIn(text, says) {
  const at = text.lastIndexOf(says.trim());
  if (at < 0) return [text];
  return [text.slice(0, at), h("b", {}, says.trim()), text.slice(at + says.trim().length)];
}
