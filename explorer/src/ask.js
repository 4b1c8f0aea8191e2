// The prompt: type it or choose an example; its tokens, of which one is the query; its blocks.

import { changeLive, live, newPrompt } from "./live-state.js";
import { change, selectedIn, store } from "./store.js";
import { tokenStrip } from "./token-strip.js";
import { choices, h, panel, percent } from "./ui.js";

const CUTS = ["auto", "statements", "lines", "tokens", "drawn"];
const PAIRS = [4, 8, 16, 32, 64];
const NAMES = {
  binding: "binding: who likes what",
  owner: "owner: the answer comes first",
  repeats: "repeats: random tokens, twice",
  prose: "prose: a story",
  number: "number: a path of positions",
  letter: "letter: a path of letters",
};

/** `ask` puts a question to the server, `about` is what the page knows of the model. */
export function askPanel(ask, about) {
  const box = h("textarea", { rows: 3, spellcheck: "false", "aria-label": "The prompt", oninput: () => newPrompt({ text: box.value }) });
  const status = h("p", { class: "status", role: "status" });
  const example = h(
    "select",
    { "aria-label": "Example", onchange: () => fetchExample(0) },
    h("option", { value: "" }, "choose an example …"),
    ...about.examples.map((name) => h("option", { value: name }, NAMES[name] ?? name)),
  );
  const pairs = h(
    "select",
    { "aria-label": "Number of pairs", onchange: () => fetchExample(seed) },
    ...PAIRS.map((number) => h("option", { value: number, selected: number === 8 }, `${number} pairs`)),
  );
  const another = h("button", { type: "button", onclick: () => fetchExample(seed + 1) }, "another");
  const chat = h("button", { type: "button", hidden: !about.chats, onclick: wrap }, "as a chat message");
  const cut = choices("Blocks", CUTS, "auto", (one) => one !== "drawn" && changeLive({ blocks: one }, { swap: null }));
  const strip = tokenStrip({
    label: "The tokens of the prompt",
    onQuery: (token) => token > 0 && changeLive({ query: token === now.tokens.length - 1 ? null : token }, { swap: null }),
    onSwap: (i, j) => change({ swap: [i, j] }),
    onDraw: drawBlock,
  });
  const shown = panel("ask", "Ask", "Type a prompt, or choose an example. Every head is measured from the query, by default the last token, while you type.");
  shown.body.append(
    h("div", { class: "picks" }, example, pairs, another, chat),
    box,
    h("div", { class: "picks" }, "blocks", cut.element),
    strip.element,
    status,
  );
  let seed = 0;
  let now = { tokens: [], blocks: [] };

  async function fetchExample(number) {
    if (!example.value) return;
    seed = number;
    await load({ name: example.value, seed, pairs: Number(pairs.value) });
  }

  async function wrap() {
    await load({ name: "chat", message: box.value });
  }

  async function load(wanted) {
    try {
      const made = await ask("example", wanted);
      if (made) newPrompt({ text: made.text ?? "", ids: made.ids ?? null, blocks: made.blocks, answer: made.answer });
    } catch (error) {
      say(error.message, true);
    }
  }

  /** The first block that is drawn replaces those that were proposed; the others get its length. */
  function drawBlock(start, stop) {
    const { blocks } = live();
    const drawn = typeof blocks === "string" ? [] : blocks;
    const query = now.query ?? now.tokens.length - 1;
    const same = drawn.findIndex(([from, to]) => from <= start && start < to);
    if (same >= 0) return changeLive({ blocks: drawn.length > 1 ? drawn.filter((_, at) => at !== same) : "auto" }, { swap: null });
    const width = drawn.length ? drawn[0][1] - drawn[0][0] : stop - start;
    const block = [start, start + width];
    if (block[1] > query) return say(`A block of ${width} tokens does not fit there: blocks come before the query.`, true);
    if (drawn.some(([from, to]) => from < block[1] && block[0] < to)) return say("Blocks may not overlap.", true);
    changeLive({ blocks: [...drawn, block].sort((a, b) => a[0] - b[0]) }, { swap: null });
  }

  function say(text, wrong = false) {
    status.textContent = text;
    status.classList.toggle("wrong", wrong);
  }

  /** Show an answer of the server: the tokens, the blocks, and what was measured. */
  function show(answer, source) {
    now = answer;
    const { blocks } = live();
    cut.show(typeof blocks === "string" ? blocks : "drawn");
    pairs.hidden = !["binding", "owner", "repeats"].includes(example.value);
    another.hidden = !example.value;
    if (document.activeElement !== box) box.value = answer.text;
    const width = answer.blocks.length ? answer.blocks[0][1] - answer.blocks[0][0] : 0;
    const passes = ["no forward pass", "one forward pass"][answer.passes] ?? `${answer.passes} forward passes, those of the self-check included`;
    say(
      `${answer.tokens.length} tokens, ${answer.blocks.length} blocks of ${width} (${answer.cut}); ${passes}, ${Math.round(1000 * answer.seconds)} ms.${answer.note ? ` No scores: ${answer.note}.` : ""}`,
      Boolean(answer.note),
    );
    shade(source);
  }

  /** Attention of the selected head on every token, after the swap if there is one; else the mean of all heads. */
  function shade(source) {
    if (!now.tokens.length) return;
    const all = source?.swappedRows ?? source?.rows;
    const size = now.query + 1;
    const at = source ? selectedIn(source).at(-1) : undefined;
    let weights = new Float32Array(size);
    if (all && at !== undefined) weights = all.slice(at * size, (at + 1) * size);
    else if (all) for (let row = 0; row < all.length; row++) weights[row % size] += all[row] / (all.length / size);
    strip.show({
      tokens: now.tokens,
      blocks: now.blocks,
      weights,
      query: now.query,
      swap: store.state.swap,
      swappable: now.blocks.length > 1,
      answer: { block: null, token: null },
    });
    const whose = at === undefined ? `the mean of all ${source?.count ?? 0} heads` : `head ${source.labels[at]}`;
    const after = source?.swappedRows ? `after the swap of blocks ${store.state.swap.map((one) => one + 1).join(" and ")}, from the placement table` : `from ${now.query === now.tokens.length - 1 ? "the last token" : `token ${now.query + 1}`}`;
    shown.rehint(`Type a prompt, or choose an example. Shade: attention of ${whose} ${after}, at most ${percent(Math.max(0, ...weights))} on one token.`);
  }

  return { ...shown, box, say, show, shade };
}
