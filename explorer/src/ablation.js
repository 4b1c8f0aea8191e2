// What changes when a head is ablated: a table, and the heads with the largest effects.

import { counts, harm, signed } from "./effects.js";
import { choose, store } from "./store.js";
import { count, csvFile, h, headButton, number, panel } from "./ui.js";
import { isPart } from "./words.js";

const MOST = 5; // heads with the largest effects, per measure
const PARTS = ["change", "change_low", "change_high", "against", "against_low", "against_high"];

export function ablationTable(source) {
  const { measures, ablation, control } = source.effects;
  let head;
  const rows = () =>
    (head === undefined ? source.labels.map((_, at) => at) : [head]).flatMap((at) =>
      measures.map((measure) => ({ head: source.labels[at], ...numbers(source, measure, at) })),
    );
  const shown = panel("ablation", "Ablation", "", {
    inner: true,
    csv: () => csvFile(`${source.name}-${head === undefined ? "heads" : source.labels[head]}-ablation`, rows()),
  });
  const place = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ablation" });
  shown.body.append(place);

  function draw(at) {
    head = at;
    const whole = isPart(source, store.state) ? "Of whole heads. " : "";
    const how = `replaced by ${ablation === "mean" ? "its mean" : "zero"}`;
    const chance = `Minus random: the change minus the mean change of ${count(control)} random single heads; bold if its 95 % interval (over prompts and heads) excludes 0, as a few do by chance.`;
    shown.retitle(at === undefined ? "Largest effects of ablation" : `Ablating head ${source.labels[at]}`);
    shown.rehint(
      at === undefined
        ? `${whole}The heads whose ablation (output ${how}) harms the model most, among those that differ from random heads.`
        : `${whole}What changes when the output of the head is ${how}. ${chance}`,
    );
    place.replaceChildren(at === undefined ? strongest(source) : table(source, at));
  }
  return { ...shown, draw };
}

function numbers(source, { name, before, units, control }, at) {
  const found = Object.fromEntries(PARTS.map((part) => [part, source.array(`${name}_${part}`)[at]]));
  return { measure: name, units, before, after: before + found.change, random: control, ...found };
}

function table(source, at) {
  const titles = ["", "better if", "prompts", "before", "after", "change", "random heads", "minus random"];
  const line = (measure) => {
    const found = numbers(source, measure, at);
    const range = (value, low, high) => `${signed(value)} (${signed(low)} to ${signed(high)})`;
    const beyond = range(found.against, found.against_low, found.against_high);
    const cells = [
      measure.better ? "higher" : "lower",
      count(measure.units),
      number(found.before, 3),
      number(found.after, 3),
      range(found.change, found.change_low, found.change_high),
      signed(found.random),
      counts(source, measure, at) ? h("b", {}, beyond) : beyond,
    ];
    const none = [...cells.slice(0, 3), "not measured", "", "", ""];
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, measure.words),
      ...(Number.isNaN(found.change) ? none : cells).map((text) => h("td", {}, text)),
    );
  };
  return h(
    "table",
    {},
    h("thead", {}, h("tr", {}, ...titles.map((text) => (text ? h("th", { scope: "col" }, text) : h("td", {}))))),
    h("tbody", {}, ...source.effects.measures.map(line)),
  );
}

function strongest(source) {
  const line = (measure) => {
    const lost = harm(source, measure, "against");
    const worst = source.labels
      .map((_, at) => at)
      .filter((at) => lost[at] > 0 && counts(source, measure, at))
      .sort((a, b) => lost[b] - lost[a])
      .slice(0, MOST);
    const change = source.array(`${measure.name}_change`);
    const buttons = worst.map((at) => h("span", {}, headButton(source.labels[at], choose), signed(change[at])));
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, measure.words),
      h("td", { class: "buttons" }, ...(worst.length ? buttons : ["none"])),
    );
  };
  return h("table", {}, h("tbody", {}, ...source.effects.measures.map(line)));
}
