// One head: its kind, its numbers, and how they depend on frequency and swaps, or on training.

import { ablationTable } from "./ablation.js";
import { focusLines } from "./focus.js";
import { places, scoreLines } from "./lines.js";
import { planePath } from "./path.js";
import { change, choose, selectedIn, store } from "./store.js";
import { swap } from "./swap.js";
import { tokens } from "./tokens.js";
import { count, csvFile, h, headButton, marked, number, panel, percent } from "./ui.js";
import { alsoLooksLike, headRows, isPart, looksAt, pureSince, restsOnLittle } from "./words.js";

const MOST = 200; // heads listed

export function head(source) {
  const badge = h("span", { class: "badge" });
  const facts = h("div", { class: "facts" });
  const several = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Selected heads" });
  const selected = () => selectedIn(source);
  const shown = panel("head", "The head", "", {
    csv: () =>
      csvFile(
        `${source.name}-selected-heads`,
        headRows(source, store.state, selected().length ? selected() : undefined),
      ),
  });
  const figures = places(source).length ? [scoreLines(source), planePath(source)] : [];
  if (source.steps) figures.push(focusLines(source));
  else if (source.has("mass")) figures.push(swap(source));
  const missing =
    source.about.level === "prompt"
      ? "Level prompt reruns whole prompts: it has no frequencies and no table of swaps."
      : "This model has no rotary dimensions, and so no frequencies.";
  shown.body.append(
    facts,
    several,
    h("div", { class: "parts" }, ...figures.map((figure) => figure.element)),
    figures.length < 2 ? h("p", { class: "hint" }, missing) : "",
  );
  if (source.tokens) {
    figures.push(tokens(source));
    shown.body.append(figures.at(-1).element);
  }
  if (source.effects) {
    figures.push(ablationTable(source));
    shown.body.append(figures.at(-1).element);
  }
  shown.name.after(badge);

  function draw() {
    const all = selected();
    const at = all.at(-1);
    const kind = at === undefined ? "" : source.kinds(store.state)[at];
    shown.retitle(at === undefined ? "All heads" : `Head ${source.labels[at]}`);
    badge.className = `badge ${kind}`;
    badge.textContent = at === undefined ? "" : looksAt(source, at, store.state);
    shown.rehint(
      at === undefined
        ? `No head is selected; the figures show medians over all heads. Click a dot or a cell, or one of the purest heads${isPart(source, store.state) ? ` at frequency ${store.state.frequency}` : ""}:`
        : nature(source, at),
    );
    facts.replaceChildren(...(at === undefined ? purest(source) : numbers(source, at)));
    several.hidden = all.length < 2;
    if (all.length > 1) several.replaceChildren(table(source, all));
    return Promise.all(figures.map((figure) => figure.draw(at)));
  }
  return { ...shown, draw, mark: draw, light() {} };
}

function nature(source, at) {
  if (source.steps) return "Numbers at this step of training.";
  const also = alsoLooksLike(source, at);
  const part = isPart(source, store.state);
  const rest = also.length ? also.join(", and ") : "has none of the roles in the table above";
  const range = part || !hasRange(source, at) ? "" : ", each with its 95 % interval";
  const little = restsOnLittle(source, at) ? ` Only ${percent(source.array("on_blocks")[at])} of its attention is on the blocks: its scores are exact, but say little about what it does.` : "";
  return `${part ? "As a whole it" : "It"} ${rest}.${little} Scores are ${source.prompts > 1 ? `means over ${source.prompts} prompts` : "those of one prompt"}${range}.`;
}

const hasRange = (source, at) => source.has("positional_low") && !Number.isNaN(source.array("positional_low")[at]);

/** The numbers of a head with their names; beside those of one frequency, those of the whole head are marked. */
function numbers(source, at) {
  const state = store.state;
  const value = (name) => source.values(name, state)[at];
  const part = isPart(source, state);
  const fact = (words, text, extra = part ? "whole head" : "") =>
    h(
      "div",
      {},
      h("span", { class: "name" }, ...marked(words)),
      h("b", {}, text),
      extra ? h("span", { class: "range" }, extra) : null,
    );
  const range = (name) => {
    if (part) return `at frequency ${state.frequency}`;
    if (!hasRange(source, at)) return "";
    const [low, high] = [`${name}_low`, `${name}_high`].map((end) => source.array(end)[at]);
    return Number.isNaN(value(name)) ? "" : `${number(low)} to ${number(high)}`;
  };
  const beside = (name) => {
    if (name === "answer") return `chance ${percent(value("answer_chance"))}`;
    return source.has(`${name}_low`) && !Number.isNaN(value(`${name}_low`)) ? ["low", "high"].map((end) => percent(value(`${name}_${end}`))).join(" to ") : "";
  };
  const facts = [
    fact("positional score", number(value("positional")), range("positional")),
    fact("symbolic score", number(value("symbolic")), range("symbolic")),
    fact("entropy", number(value("entropy"))),
    fact("mean frequency", number(value("mean_frequency"), 0)),
  ];
  if (source.steps) {
    const since = pureSince(source, at, state);
    const never = source.at(state) === source.steps.length - 1 ? "never" : "not yet";
    return [...facts, fact("pure since", since === undefined ? never : `step ${count(since)}`)];
  }
  const shares = [
    ["on the blocks", "on_blocks"],
    ["on the answer", "answer"],
    ["on the query itself", "on_query"],
    ["on the first token", "on_first"],
    ["on previous token", "previous_token"],
    ["induction", "induction"],
  ]
    .filter(([, name]) => source.has(name) && !Number.isNaN(value(name)))
    .map(([words, name]) => fact(words, percent(value(name)), part ? "whole head" : beside(name)));
  const without = Number.isNaN(value("positional_without_first"))
    ? []
    : [
        fact(
          "without first token",
          `${number(value("positional_without_first"))}, ${number(value("symbolic_without_first"))}`,
        ),
      ];
  const bound = Number.isNaN(value("variance"))
    ? []
    : [fact("exclusion bound", `${number(value("variance"))} ≤ ${number(value("exclusion_bound"))}`)];
  const elsewhere = part ? [] : (source.tasks ?? []).map((name, task) =>
    fact(`on ${name}`, ["positional", "symbolic"].map((axis) => number(source.array(`task_${task}_${axis}`)[at])).join(", ")),
  );
  return [...facts, ...shares, ...elsewhere, ...without, ...bound, fact("key head", String(source.kv_heads[at]))];
}

/** The heads deepest in each corner, as buttons. */
function purest(source) {
  const [positional, symbolic] = ["positional", "symbolic"].map((name) => source.values(name, store.state));
  const kinds = source.kinds(store.state);
  const depth = {
    where: (at) => positional[at] - symbolic[at],
    what: (at) => symbolic[at] - positional[at],
    unfocused: (at) => positional[at] + symbolic[at],
  };
  return Object.entries(depth).map(([kind, deep]) => {
    const best = kinds
      .flatMap((one, at) => (one === kind ? [at] : []))
      .sort((a, b) => deep(b) - deep(a))
      .slice(0, 5);
    const buttons = best.map((at) => headButton(source.labels[at], choose));
    return h(
      "div",
      {},
      h("span", { class: "name" }, h("b", { class: kind }, kind)),
      h("span", { class: "buttons" }, ...(best.length ? buttons : ["none"])),
    );
  });
}

/** Several heads as a small table; the one selected last is drawn. */
function table(source, all) {
  const kinds = source.kinds(store.state);
  const part = isPart(source, store.state);
  const columns = ["positional", "symbolic", ...(part ? [] : ["entropy"])];
  const draw = (label) => change({ heads: [...store.state.heads.filter((one) => one !== label), label], swap: null });
  const line = (at) =>
    h(
      "tr",
      { "aria-current": at === all.at(-1) ? "true" : null },
      h(
        "td",
        {},
        h("button", { type: "button", class: "quiet", onclick: () => draw(source.labels[at]) }, source.labels[at]),
      ),
      h("td", {}, h("b", { class: kinds[at] }, kinds[at])),
      ...columns.map((name) => h("td", {}, number(source.values(name, store.state)[at]))),
    );
  const titles = ["head", "kind", ...columns].map((text) => h("th", { scope: "col" }, text));
  const more = all.length > MOST ? `, ${MOST} listed` : "";
  const only = part ? `, at frequency ${store.state.frequency} alone` : "";
  return h(
    "table",
    {},
    h("caption", {}, `${count(all.length)} heads selected${more}${only}; the one in bold is drawn below`),
    h("thead", {}, h("tr", {}, ...titles)),
    h("tbody", {}, ...[...all].reverse().slice(0, MOST).map(line)),
  );
}
