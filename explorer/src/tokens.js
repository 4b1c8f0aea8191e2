// Attention of one head on every token of a prompt, from any of its tokens.

import { change, store } from "./store.js";
import { chosenPair, rowOf } from "./swap.js";
import { quoted, tokenStrip } from "./token-strip.js";
import { csvFile, h, panel, percent } from "./ui.js";
import { isPart } from "./words.js";

const LISTED = 5; // tokens

/** `source.tokens` answers for the attention: its prompts, which queries it knows, and the weights of a head. */
export function tokens(source) {
  const { tokens: asked } = source;
  const pick = h(
    "select",
    { "aria-label": "Prompt", onchange: () => change({ prompt: Number(pick.value), token: null }) },
    ...asked.prompts.map((_, at) => h("option", { value: at }, `prompt ${at + 1}`)),
  );
  const back = h("button", { type: "button", class: "quiet", onclick: () => change({ token: null }) }, "back to the last token");
  const strip = tokenStrip({ label: "The tokens of the prompt", onQuery, onSwap });
  const summary = h("p", { class: "verdict", "aria-live": "polite" });
  const shown = panel("tokens", "Every token", "", {
    inner: true,
    tools: [back, asked.prompts.length > 1 ? pick : null],
    csv: () => csvFile(`${source.name}-${source.labels[head] ?? ""}-tokens`, rows()),
  });
  shown.body.append(strip.element, summary);
  let head;
  let now = { prompt: 0, query: 0, weights: [], complete: true };
  let drawing = 0;

  function onQuery(token) {
    const { prompt } = now;
    if (asked.knows(prompt, token)) change({ token: token === asked.prompts[prompt].tokens.length - 1 ? null : token });
    else summary.textContent = prompt ? "Only the last query of this prompt is stored; the first prompt has others." : `The attention of token ${token + 1} is not stored.`;
  }

  function onSwap(i, j) {
    if (rowOf(source, i) !== rowOf(source, j)) change({ swap: [i, j] });
  }

  const rows = () => {
    const { tokens, blocks } = asked.prompts[now.prompt];
    return tokens.map((token, at) => ({
      token: at + 1,
      text: token,
      block: blocks.findIndex(([start, stop]) => start <= at && at < stop) + 1 || "",
      query: at === now.query ? "yes" : "",
      attention: now.weights[at] ?? null,
    }));
  };

  async function draw(at) {
    head = at;
    const own = ++drawing;
    const { state } = store;
    const prompt = asked.prompts[state.prompt] ? state.prompt : 0;
    const { tokens, blocks, target, answer_at } = asked.prompts[prompt];
    const query = state.token !== null && asked.knows(prompt, state.token) ? state.token : tokens.length - 1;
    const found = at === undefined ? { weights: [], complete: true } : await asked.weights(at, prompt, query);
    const swappable = prompt === 0 && source.has("mass");
    const table = swappable && at !== undefined ? await source.placement(at) : null;
    if (own !== drawing) return; // another head was chosen meanwhile
    now = { ...found, prompt, query };
    pick.value = prompt;
    back.hidden = query === tokens.length - 1;
    const swap = table && (state.swap ?? chosenPair(source, table).map((row) => source.table[row].first));
    strip.show({
      ...{ tokens, blocks, query, weights: now.weights, swap, swappable },
      answer: { block: target, token: answer_at },
    });
    describe(tokens, blocks);
  }

  function describe(tokens, blocks) {
    const { prompt, query, weights, complete } = now;
    const whose = isPart(source, store.state) ? "the whole head" : "this head";
    const from = query === tokens.length - 1 ? "the last token, the query" : `token ${query + 1}, ${quoted(tokens[query])}`;
    const of = `prompt ${prompt + 1} of ${source.prompts}: ${tokens.length} tokens, ${blocks.length} blocks outlined`;
    shown.rehint(`Attention of ${whose} from ${from}, in ${of}. Shade and height grow with the square root of the attention.`);
    if (head === undefined) return void (summary.textContent = "Select a head to see its attention.");
    const total = weights.reduce((sum, share) => sum + share, 0);
    const inside = blocks.flatMap(([start, stop]) => Array.from(weights.subarray(start, stop)));
    const most = Array.from(weights.keys()).sort((a, b) => weights[b] - weights[a]).slice(0, LISTED);
    const listed = most.filter((at) => weights[at] > 0).map((at) => `${quoted(tokens[at])} (${at + 1}) ${percent(weights[at])}`);
    const stored = complete ? "" : ` Stored for this query: the ${asked.top} tokens with the most attention, together ${percent(total)}.`;
    summary.textContent = `Most attention: ${listed.join(", ")}. On the blocks together: ${percent(inside.reduce((sum, share) => sum + share, 0))}.${stored}`;
  }
  return { ...shown, draw };
}
