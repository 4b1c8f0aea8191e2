// The live page: the same figures as the offline page, and panels that ask the server.

import { ablatePanel } from "./ablate.js";
import { answerPanel } from "./answer.js";
import { askPanel } from "./ask.js";
import { keepBar } from "./keep.js";
import { LiveSource } from "./live-source.js";
import { server } from "./live-server.js";
import { live, newPrompt, promptOf } from "./live-state.js";
import { embedded, opening, refresh, start } from "./main.js";
import { runSwapPanel } from "./run-swap.js";
import { decode } from "./source.js";
import { onChange, readHash, store } from "./store.js";
import { h } from "./ui.js";

const data = JSON.parse(document.getElementById("data").textContent);
const ask = server(data.live.token);
const prompt = askPanel(ask, data.live);
const answer = answerPanel(ask);
const keep = keepBar(ask, prompt.say);
const ablation = ablatePanel(ask, (lines) => keep.know({ ablation: lines }));
const run = runSwapPanel(ask);
const deck = h("div", { class: "deck" }, prompt.element, answer.element, run.element, ablation.element);
prompt.body.append(keep.element);
run.element.hidden = true;

let source = null; // what the figures show
let shown = null; // what the tokens are shaded by: of a prompt without scores, there are no figures
let asked = ""; // the prompt that was asked for last
let swapAsked = "";
const fresh = !location.hash; // a page that was just opened, not reloaded

/** Measure the prompt: first what is painted at once, then everything else; neither repeats the forward pass. */
async function measure() {
  const given = promptOf(live());
  const key = JSON.stringify(given);
  if (key === asked) return;
  asked = key;
  keep.know({ prompt: [], jsonl: "" });
  try {
    const first = await ask("measure", given, (reason) => prompt.say(reason));
    if (!first || key !== asked) return;
    await paint(first);
    if (first.note) return;
    const rest = await ask("details", given, (reason) => prompt.say(reason));
    if (!rest || key !== asked) return;
    fill(rest, first);
    keep.know({ prompt: rest.python, jsonl: rest.jsonl });
    await refresh();
    swap();
    document.documentElement.dataset.complete = key;
  } catch (error) {
    prompt.say(`${error.message.charAt(0).toUpperCase()}${error.message.slice(1)}.`, true);
    asked = "";
  }
}

/** Tokens, answer, plane and grid. */
async function paint(first) {
  const rows = Float32Array.from(decode(first.arrays.token_attention), (units) => units / 65535);
  const { frequencies = null } = source ?? {}; // figures of the prompt before are still there
  const partial = { ...EMPTY, frequencies, name: data.live.name, ...first, blocks: first.blocks.length, arrays: first.arrays };
  delete partial.tokens;
  if (!first.note) {
    if (source) source.renew(partial);
    else {
      source = new LiveSource(partial);
      const sources = [source, ...data.sources.map(embedded)];
      await start(data, sources, [deck], store.state);
      if (fresh) store.state = opening(store.state);
    }
    Object.assign(source, { rows, swappedRows: null });
    await refresh(["plane", "grid"]);
  }
  shown = first.note ? { rows, count: first.labels.length, labels: first.labels, places: new Map() } : source;
  deck.parentElement.classList.toggle("unscored", Boolean(first.note));
  prompt.show(first, shown);
  answer.show(first);
  run.show(first, first.note ? null : source);
  ablation.clear();
  ablation.draw();
  document.documentElement.dataset.painted = String(performance.now());
}

const EMPTY = { type: "profile", sentences: [], warnings: [], kv_heads: [], frequencies: null, table: [], prompts: 1, effects: null, plan: null, tokens: null, command: "", about: {} };

/** Everything else: frequencies, the table of swaps, where the numbers come from. */
function fill(rest, first) {
  const { rows } = source;
  swapAsked = ""; // a swap that was chosen meanwhile
  source.renew({ ...rest, tokens: null, arrays: { ...first.arrays, ...rest.arrays } });
  Object.assign(source, { rows, swappedRows: null });
}

/** Attention on every token after the swap, from the placement tables. */
async function swap() {
  const pair = store.state.swap;
  const key = JSON.stringify([asked, pair]);
  if (!source || key === swapAsked) return;
  swapAsked = key;
  source.swappedRows = null;
  run.draw();
  prompt.shade(source);
  if (!pair || !source.table.length) return;
  try {
    const found = await ask("swap", { ...promptOf(live()), swap: pair });
    if (!found || key !== swapAsked) return;
    source.swappedRows = Float32Array.from(decode(found.arrays.token_attention), (units) => units / 65535);
    run.draw();
    prompt.shade(source);
    document.documentElement.dataset.swapped = String(performance.now());
  } catch (error) {
    prompt.say(error.message, true);
  }
}

onChange((state, before) => {
  if (state.live !== before.live) measure();
  if (state.swap !== before.swap) swap();
  if (state.heads !== before.heads && shown) {
    prompt.shade(shown);
    run.draw();
  }
  ablation.draw();
});

/** The prompt of the address, or else an example. */
async function open() {
  document.getElementById("explorer").replaceChildren(deck);
  store.state = readHash(location.hash);
  if (store.state.live) return measure();
  try {
    const made = await ask("example", { name: data.live.examples[0], pairs: 8 }, (reason) => prompt.say(reason));
    newPrompt({ text: made.text ?? "", ids: made.ids ?? null, blocks: made.blocks, answer: made.answer });
  } catch (error) {
    prompt.say(error.message, true);
  }
}
prompt.say("Loading the model and checking it …");
open();
