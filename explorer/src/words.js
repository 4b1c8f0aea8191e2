// The words for a head, in one place: tooltips, announcements to screen readers, titles, tables.

import { effectLine } from "./effects.js";
import { choose, store } from "./store.js";
import { announce, count, number, percent } from "./ui.js";

const LOOKS = {
  where: "looks at where",
  what: "looks at what",
  unfocused: "is unfocused",
  mixed: "is mixed",
  unmeasured: "could not be measured",
};

/** Whether the scores shown are those of one frequency instead of whole heads. */
export const isPart = (source, state) => source.frequencyAt(state) >= 0;

/** How a hint begins in that case. */
export const alone = (source, state) => (isPart(source, state) ? `At frequency ${state.frequency} alone. ` : "");

export function looksAt(source, at, state) {
  const looks = LOOKS[source.kindOf(at, state)];
  return isPart(source, state) ? `${looks} at frequency ${state.frequency}` : looks;
}

/** The step since which a head is pure, unless it lies ahead. */
export function pureSince(source, at, state) {
  const since = source.pure?.[source.labels[at]];
  return since <= source.steps?.[source.at(state)] ? since : undefined;
}

export function sentence(source, at, state) {
  if (source.lengths) return lossSentence(source, at);
  const [positional, symbolic] = ["positional", "symbolic"].map((name) => number(source.values(name, state)[at]));
  return `Head ${source.labels[at]} ${looksAt(source, at, state)}: positional ${positional}, symbolic ${symbolic}`;
}

/** The length at which a head loses half of its attention on the next token of its path. */
export const lossWords = (source, at) =>
  ["measured", "predicted"]
    .map((end) => [end, source.array(end)[at]])
    .filter(([, tokens]) => !Number.isNaN(tokens)) // not predicted
    .map(
      ([end, tokens]) =>
        `${end} ${Number.isFinite(tokens) ? `${count(Math.round(tokens))} tokens` : "beyond the lengths measured"}`,
    )
    .join(", ");

const lossSentence = (source, at) =>
  `Head ${source.labels[at]} loses half of its attention on the next token at: ${lossWords(source, at)}`;

export function tipOf(source, at, state) {
  const lines = [
    `Head ${source.labels[at]} ${looksAt(source, at, state)}`,
    `positional ${number(source.values("positional", state)[at])} · symbolic ${number(source.values("symbolic", state)[at])} · entropy ${isPart(source, state) ? "of the whole head " : ""}${number(source.values("entropy", state)[at])}`,
  ];
  if (restsOnLittle(source, at)) lines.push(`rests on little attention: ${percent(source.array("on_blocks")[at])} on the blocks`);
  const since = pureSince(source, at, state);
  if (since !== undefined) lines.push(`pure since step ${count(since)}`);
  return [...lines, ...effectLine(source, at, state)];
}

/** The roles of a head, from its attention on repeated tokens, on the first token and on the answer. */
export const rolesOf = (source, at) =>
  source.once("roles of heads", () => {
    const roles = source.labels.map(() => []);
    for (const [role, places] of Object.entries(source.roles)) for (const place of places) roles[place].push(role);
    return roles;
  })[at];

export const restsOnLittle = (source, at) => Boolean(source.roles?.[LITTLE]) && rolesOf(source, at).includes(LITTLE);

const LITTLE = "rests on little";
const ROLES = {
  "previous-token": ["looks like a previous-token head", "previous_token", "on the token before"],
  induction: ["looks like an induction head", "induction", "on the token that followed last time, in repeated text"],
  "current-token": ["looks like a current-token head", "current_token", "on the query itself, in repeated text"],
  sink: ["rests on the first token", "on_first", ""],
  retrieving: ["retrieves", "answer", "on the block with the answer"],
};

/** What else a head does, in words. */
export function alsoLooksLike(source, at) {
  if (!source.roles) return [];
  return Object.entries(ROLES)
    .filter(([role]) => rolesOf(source, at).includes(role))
    .map(([, [words, name, place]]) => `${words} (${percent(source.array(name)[at])} of its attention${place && ` ${place}`})`);
}

/** The table of heads as it is shown: all of them, or those at some places. */
export function headRows(source, state, places = source.labels.map((_, at) => at)) {
  const kinds = source.kinds(state);
  const columns = source.steps
    ? ["positional", "symbolic", "entropy", "mean_frequency"]
    : isPart(source, state)
      ? ["positional", "symbolic"]
      : Object.keys(source.arrays).filter((name) => !/^(row|head|mass|token_attention|strongest_.*|frequency_.*)$/.test(name));
  return places.map((at) => ({
    ...(source.steps ? { step: source.steps[source.at(state)] } : {}),
    ...(isPart(source, state) ? { frequency: state.frequency } : {}),
    layer: source.layers[source.row[at]],
    head: source.head[at],
    kind: kinds[at],
    ...Object.fromEntries(columns.map((name) => [name, source.values(name, state)[at]])),
    ...(source.pure ? { pure_since: source.pure[source.labels[at]] ?? "" } : {}),
  }));
}

/** Arrow keys move through the heads of a layer and through the layers. */
export function moveWith(event, source) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const step = steps[event.key];
  if (!step || event.metaKey || event.ctrlKey || event.altKey) return;
  event.preventDefault();
  const now = source.places.get(store.state.heads.at(-1));
  let at = 0;
  if (now !== undefined) {
    const row = Math.min(source.layers.length - 1, Math.max(0, source.row[now] + step[0]));
    const inRow = source.byRow[row];
    const column = source.byRow[source.row[now]].indexOf(now) + step[1];
    at = inRow[Math.min(inRow.length - 1, Math.max(0, column))];
  }
  choose(source.labels[at], event.shiftKey);
  announce(sentence(source, at, store.state));
}
