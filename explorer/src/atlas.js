// An atlas of models: heads labelled with their model, a colour and a shape per model, one model highlighted.

import { create } from "d3-selection";
import { circle, colours, diamond, square, triangle } from "./chart.js";
import { decode, Source } from "./source.js";
import { change, choose, light, store } from "./store.js";
import { announce, h, number, percent } from "./ui.js";
import { moveWith, sentence } from "./words.js";

const SHAPES = [circle, square, diamond, triangle];
const UNKNOWN = 0xffff;

export class Atlas extends Source {
  constructor(given) {
    super(unfold(given));
    this.numbers = new Map(this.models.map((one, at) => [one.model, at]));
    this.familyNumbers = new Map(this.families.map((one, at) => [one.family, at]));
  }

  array(name) {
    return this.unfolded[name] ?? super.array(name);
  }

  kinds() {
    return this.once("kinds", () => Array.from(decode(this.arrays.kind), (code) => this.kind_names[code]));
  }

  kindOf(at) {
    return this.kinds()[at];
  }

  /** The heads of a model: from, up to but not including. */
  span(model) {
    return [this.models[model].from, this.models[model].until];
  }

  /** The model that is highlighted: the one under the pointer, else the selected one. */
  highlighted(lit = store.lit) {
    return this.numbers.get(lit) ?? this.modelOf(lit) ?? this.numbers.get(store.state.model);
  }

  /** The model of a head by its label. */
  modelOf(label) {
    const at = this.places.get(label);
    return at === undefined ? undefined : this.unfolded.model[at];
  }

  /** The relative depth of a head in its model, 0 to 1. */
  depth(at) {
    const { firstRow, rows } = this.models[this.unfolded.model[at]];
    return (this.row[at] - firstRow) / Math.max(1, rows.length - 1);
  }
}

/** Labels, layers and models of all heads, from the number of heads in every layer of every model. */
function unfold(given) {
  const [labels, layers, row, head, model] = [[], [], [], [], []];
  const models = given.models.map((one, number) => {
    const [from, firstRow] = [labels.length, layers.length];
    for (const [layer, heads, run] of one.rows) {
      for (let at = 0; at < heads; at++) {
        labels.push(`${one.model} ${layer}.${at}${run ? `-${run + 1}` : ""}`);
        row.push(layers.length);
        head.push(at);
        model.push(number);
      }
      layers.push(layer);
    }
    return { ...one, number, from, until: labels.length, firstRow };
  });
  const unfolded = { row, head, model };
  for (const name of ["positional", "symbolic", "entropy"])
    unfolded[name] = Float64Array.from(decode(given.arrays[name]), (step) =>
      step === UNKNOWN ? NaN : step / (UNKNOWN - 1),
    );
  return { ...given, models, labels, layers, unfolded };
}

/** The colour and shape of a model or family; neighbours differ in both. */
export const colourOf = (at) => colours().models[at % colours().models.length];
export const shapeOf = (at) => SHAPES[(at + Math.floor(at / colours().models.length)) % SHAPES.length];

export const chooseModel = (source, at) => {
  const name = source.models[at].model;
  const same = store.state.model === name;
  change({ model: same ? null : name, heads: [] });
  announce(same ? "No model is selected" : modelLines(source, at).join(", "));
};

export function modelLines(source, at) {
  const one = source.models[at];
  return [
    one.model,
    `${one.family} · ${one.layers} layers · ${one.heads} heads`,
    `r ${number(one.r)} · median positional ${number(one.positional)} · symbolic ${number(one.symbolic)}`,
    source.kind_names
      .filter((kind) => one[kind] > 0)
      .map((kind) => `${percent(one[kind])} ${kind}`)
      .join(" · "),
  ];
}

export function chooseHead(source, at, adding) {
  change({ model: source.models[source.unfolded.model[at]].model });
  choose(source.labels[at], adding);
  announce(sentence(source, at, store.state));
}

/** Arrow keys move through heads and layers, page keys through models. */
export function moveAmong(event, source) {
  const step = { PageUp: -1, PageDown: 1 }[event.key];
  if (!step) {
    moveWith(event, source);
    const model = source.modelOf(store.state.heads.at(-1));
    if (model !== undefined && source.models[model].model !== store.state.model)
      change({ model: source.models[model].model });
    return;
  }
  event.preventDefault();
  const now = source.modelOf(store.state.heads.at(-1)) ?? source.numbers.get(store.state.model);
  const next = now === undefined ? 0 : Math.min(source.models.length - 1, Math.max(0, now + step));
  chooseHead(source, source.models[next].from, false);
}

/** The mark of a model or family, shown before its name. */
export function markOf(at) {
  const svg = create("svg").attr("width", 12).attr("height", 12).attr("aria-hidden", "true");
  svg
    .append("path")
    .attr("d", shapeOf(at)(6, 6, 4))
    .attr("fill", colourOf(at));
  return svg.node();
}

/** A button that selects a model, with its mark and name. */
export function modelButton(source, at) {
  const name = source.models[at].model;
  const button = h("button", {
    type: "button",
    class: "quiet",
    onclick: () => chooseModel(source, at),
    onpointerenter: () => light(name),
    onpointerleave: () => light(null),
  });
  return { button, draw: () => button.replaceChildren(markOf(at), name) };
}
