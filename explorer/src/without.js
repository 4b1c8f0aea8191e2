// What a model can no longer do without a head: a table, and the heads that are missed most.

import { counts, harm, signed } from "./effects.js";
import { choose, store } from "./store.js";
import { count, csvFile, h, headButton, number, panel } from "./ui.js";
import { isPart } from "./words.js";

const MOST = 5; // heads that are missed most, of each measure
const PARTS = ["change", "change_low", "change_high", "against", "against_low", "against_high"];

export function without(source) {
  const { measures, ablation, control } = source.effects;
  let head;
  const rows = () =>
    (head === undefined ? source.labels.map((_, at) => at) : [head]).flatMap((at) =>
      measures.map((measure) => ({ head: source.labels[at], ...numbers(source, measure, at) })),
    );
  const shown = panel("effects", "Without it", "", {
    inner: true,
    csv: () => csvFile(`${source.name}-${head === undefined ? "heads" : source.labels[head]}-ablation`, rows()),
  });
  const place = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Without it" });
  shown.body.append(place);

  function draw(at) {
    head = at;
    const whole = isPart(source, store.state) ? "Of whole heads. " : "";
    const how = `replaced by ${ablation === "mean" ? "its mean" : "zero"}`;
    const chance = `Against random: less the mean of ${count(control)} single heads; bold where its interval (95 %, over prompts and heads) excludes 0, which a few do by chance.`;
    shown.retitle(at === undefined ? "Missed most" : `Without head ${source.labels[at]}`);
    shown.rehint(
      at === undefined
        ? `${whole}The heads without whose output, ${how}, the model does worst, among those told from as many at random.`
        : `${whole}What changes when its output is ${how}. ${chance}`,
    );
    place.replaceChildren(at === undefined ? missed(source) : table(source, at));
  }
  return { ...shown, draw };
}

function numbers(source, { name, before, units, control }, at) {
  const found = Object.fromEntries(PARTS.map((part) => [part, source.array(`${name}_${part}`)[at]]));
  return { measure: name, units, before, after: before + found.change, random: control, ...found };
}

function table(source, at) {
  const titles = ["", "better", "prompts", "with it", "without it", "change", "at random", "against random"];
  const line = (measure) => {
    const found = numbers(source, measure, at);
    const range = (value, low, high) => `${signed(value)} (${signed(low)} to ${signed(high)})`;
    const beyond = range(found.against, found.against_low, found.against_high);
    const cells = [
      measure.better ? "more" : "less",
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

function missed(source) {
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
