// One swap, animated: the attention of a positional head stays in place, that of a symbolic head follows the content.

import { swapped } from "./source.js";
import { choose } from "./store.js";
import { h, marked, panel, percent } from "./ui.js";
import { restsOnLittle } from "./words.js";

const CANDIDATES = 6; // heads of each kind
const [PAUSE, TURNS] = [2600, 4]; // milliseconds between swaps, and how many are played
const SAYS = {
  where: "looks at where: its attention stays in place",
  what: "looks at what: its attention follows the statement",
};

export function story(source) {
  const button = h("button", { type: "button", onclick: () => (stop(), turn()) }, "swap");
  const shown = panel("story", "One swap", "", { tools: [button] });
  const rows = h("div", { class: "story" });
  shown.body.append(rows);
  shown.element.hidden = true;
  let acts = null;
  let after = false;
  let timer = null;

  async function draw() {
    if (acts) return;
    const cast = await castOf(source);
    if (!cast) return;
    acts = cast.heads.map(({ at, kind }) => actOf(source, at, kind, cast));
    const [one, other] = cast.pair.map((row) => `“${source.table[row].label.trim()}” (${row + 1})`);
    shown.rehint(`In the first prompt, ${one} and ${other} change places. Bars: attention on either place.`);
    rows.replaceChildren(...acts.map((act) => act.element));
    shown.element.hidden = false;
    show();
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) play(TURNS);
  }

  function play(turns) {
    if (!turns) return;
    timer = setTimeout(() => (turn(), play(turns - 1)), PAUSE);
  }
  const stop = () => clearTimeout(timer);
  function turn() {
    after = !after;
    show();
  }
  function show() {
    for (const act of acts) act.show(after);
    button.textContent = after ? "swap back" : "swap";
    rows.classList.toggle("after", after);
  }
  return { ...shown, draw, mark() {}, light() {}, stop };
}

/** One head: two places with a bar each, and the statements that change places. */
function actOf(source, at, kind, { pair, tables }) {
  const made = swapped(tables.get(at), ...pair);
  const top = Math.max(...pair.flatMap((row) => [made.before[row], made.after[row]]));
  const label = source.labels[at];
  const places = pair.map((row, nth) => {
    const [bar, share] = [h("div", { class: `bar-of ${kind}` }), h("span", { class: "share" })];
    const says = h("span", { class: `statement ${nth ? "second" : "first"}` }, source.table[row].label.trim() || `block ${row + 1}`);
    return { row, bar, share, element: h("div", { class: "place" }, h("div", { class: "level" }, share, bar), says) };
  });
  const name = h("button", { type: "button", class: "quiet", onclick: () => choose(label) }, `Head ${label}`);
  const words = h("p", { class: "verdict" }, name, " ", ...marked(SAYS[kind]));
  const element = h("div", { class: "act" }, words, h("div", { class: "places" }, ...places.map((place) => place.element)));
  function show(after) {
    for (const { row, bar, share } of places) {
      const now = (after ? made.after : made.before)[row];
      bar.style.height = `${Math.max(1, (100 * now) / top)}%`;
      share.textContent = percent(now);
    }
  }
  return { element, show };
}

/** The heads and the swap that show it best: attention on one block but not the other, clearly staying or following. */
async function castOf(source) {
  const [kinds, on] = [source.kinds({ frequency: null, step: null }), source.array("on_blocks")];
  const groups = ["where", "what"]
    .map((kind) => ({
      kind,
      heads: source.labels
        .map((_, at) => at)
        .filter((at) => kinds[at] === kind && !restsOnLittle(source, at))
        .sort((a, b) => on[b] - on[a])
        .slice(0, CANDIDATES),
    }))
    .filter(({ heads }) => heads.length);
  if (!groups.length || source.table.length < 2) return null;
  const all = groups.flatMap(({ heads }) => heads);
  const tables = new Map(await Promise.all(all.map(async (at) => [at, await source.placement(at)])));
  const size = source.table.length;
  let best = { least: -1 };
  for (let i = 0; i < size; i++) {
    for (let j = 0; j < size; j++) {
      if (i === j) continue;
      const heads = groups.map(({ kind, heads }) => clearest(kind, heads, tables, i, j));
      const least = Math.min(...heads.map(({ value }) => value));
      if (least > best.least) best = { least, heads, pair: [i, j], tables };
    }
  }
  return best;
}

/** Of some heads the one that shows its kind best when blocks i and j are swapped. */
function clearest(kind, heads, tables, i, j) {
  let best = { value: -1 };
  for (const at of heads) {
    const { mass } = tables.get(at);
    const [was, other] = [mass(i, i), mass(j, j)];
    const [stays, follows] = [mass(j, i), mass(i, j)];
    const [right, wrong] = kind === "where" ? [stays, follows] : [follows, stays];
    const value = part(was, other) * part(right, wrong) * Math.sqrt(Math.min(was, right));
    if (value > best.value) best = { value, at, kind };
  }
  return best;
}

const part = (more, less) => Math.max(0, (more - less) / (more + less));
