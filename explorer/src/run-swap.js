// The text with two blocks swapped, run through the whole model, beside the text as it was.

import { live, promptOf } from "./live-state.js";
import { nextTokens } from "./next-tokens.js";
import { change, selectedIn, store } from "./store.js";
import { decode } from "./source.js";
import { h, panel, percent } from "./ui.js";

export function runSwapPanel(ask) {
  const shown = panel("run", "Swap", "");
  const run = h("button", { type: "button", class: "strong", onclick: go }, "run it");
  const clear = h("button", { type: "button", class: "quiet", onclick: () => change({ swap: null }) }, "undo the swap");
  const tables = h("div", { class: "nexts" });
  const words = h("p", { class: "verdict", "aria-live": "polite" });
  shown.body.append(h("div", { class: "picks" }, run, clear), words, tables);
  let now = null;
  let source = null;
  let result = null;

  const swappedIds = ([i, j]) => {
    const ids = [...now.ids];
    const [a, b] = [now.blocks[i], now.blocks[j]];
    for (let at = 0; at < a[1] - a[0]; at++) [ids[a[0] + at], ids[b[0] + at]] = [ids[b[0] + at], ids[a[0] + at]];
    return ids;
  };

  async function go() {
    const pair = store.state.swap;
    run.disabled = true;
    words.textContent = "Running the model on the swapped text …";
    try {
      const answer = await ask("run", { ...promptOf(live()), text: undefined, ids: swappedIds(pair), blocks: now.blocks, query: now.query });
      if (answer) {
        result = { pair, answer, rows: shares(answer) };
        draw();
      } else words.textContent = "";
    } catch (error) {
      words.textContent = error.message;
    }
    run.disabled = false;
  }

  const shares = (answer) => Float32Array.from(decode(answer.arrays.token_attention), (units) => units / 65535);

  /** The attention of a head on a block, in rows of attention of all heads. */
  const onBlock = (rows, head, block) => {
    const size = now.query + 1;
    const [start, stop] = now.blocks[block];
    return rows.subarray(head * size + start, head * size + stop).reduce((sum, share) => sum + share, 0);
  };

  async function draw() {
    const pair = store.state.swap;
    shown.element.hidden = !pair || !now || !source;
    if (shown.element.hidden) return;
    if (result && String(result.pair) !== String(pair)) result = null;
    const [i, j] = pair;
    const text = (block) => `“${now.tokens.slice(...now.blocks[block]).join("").trim()}”`;
    shown.retitle(`Swap ${text(i)} and ${text(j)}`);
    shown.rehint(
      "Attention after the swap is read from the placement table of every head, without a forward pass. Run it: the text itself is swapped, and the whole model runs again, so that earlier layers see the swap, too.",
    );
    const at = selectedIn(source).at(-1);
    const both = result ? [nextTokens("Before", now.next), nextTokens("After the swap", result.answer.next)] : [];
    tables.replaceChildren(...both);
    if (at === undefined || !source.rows) return void (words.textContent = "Select a head to see its attention on both blocks.");
    const says = (rows) => `${percent(onBlock(rows, at, i))} and ${percent(onBlock(rows, at, j))}`;
    const parts = [`before ${says(source.rows)}`];
    if (source.swappedRows) parts.push(`after the swap inside the head ${says(source.swappedRows)}`);
    if (result) parts.push(`after running the swapped text ${says(result.rows)}`);
    words.textContent = `Attention of head ${source.labels[at]} on the places of the two blocks: ${parts.join("; ")}.`;
  }

  function show(answer, from) {
    [now, source] = [answer, from];
    result = null;
    draw();
  }
  return { ...shown, show, draw };
}
