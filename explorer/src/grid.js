// Layers down, heads across: the whole model as cells.

import { cells, circle, colours, cross, diamond, frame, key, layer, placeOf, square, triangle, widthOf } from "./chart.js";
import { chosenMeasure, counts, harm } from "./effects.js";
import { answerHeads, figurePanel } from "./figure.js";
import { middle as median } from "./source.js";
import { change, placesOf, selectedIn, store } from "./store.js";
import { choices, count, h, number, percent } from "./ui.js";
import { alone, headRows, isPart, pureSince, restsOnLittle, rolesOf, tipOf } from "./words.js";

const MARGIN = { left: 38, top: 20, right: 8, bottom: 34 };
const MODES = ["difference", "positional", "symbolic", "entropy"];
const SIGNS = "Circle: where, square: what, cross: could not be measured.";
const EFFECT_SIGNS = "Triangle: differs from random heads; down: worse, up: better. Cross: not measured.";
const ENDS = {
  difference: ["what", "where"],
  positional: ["0", "1 where"],
  symbolic: ["0", "1 what"],
  entropy: ["focused", "spread out"],
  retrieval: ["0", "most"],
  ablation: ["better", "worse"],
};
const HINTS = {
  difference: "Positional minus symbolic score: orange heads look at where, blue heads at what.",
  positional: "Positional score: how much attention stays in place.",
  symbolic: "Symbolic score: how much attention follows the contents.",
  entropy: "Entropy of attention: dark heads spread it over many tokens.",
};

export function grid(source) {
  const asked = source.has("answer") && source.array("answer").some((share) => !Number.isNaN(share));
  const modes = [...MODES, ...(asked ? ["retrieval"] : []), ...(source.effects ? ["ablation"] : [])];
  const mode = choices("Colour cells by", modes, store.state.cells, (cells) => change({ cells }));
  const measure = h(
    "select",
    { "aria-label": "Measure of the ablation", onchange: () => change({ measure: measure.value }) },
    ...(source.effects?.measures ?? []).map(({ name, words }) => h("option", { value: name }, words)),
  );
  const order = choices("Order of heads within a layer", ["by number", "sorted"], "by number", (one) =>
    change({ sorted: one === "sorted" }),
  );
  const { svg, shown } = figurePanel("grid", "The grid", "", {
    label: "The grid of heads: layers down, heads across. Arrow keys move through it.",
    interactive: true,
    file: `${source.name}-grid`,
    table: `${source.name}-heads`,
    csv: () => headRows(source, store.state),
    tools: [mode.element, measure, source.width > 1 ? order.element : null],
  });
  let size = { width: 1, height: 1 };
  let columns = []; // the heads of each row from left to right
  let column = []; // the column of each head

  function draw() {
    const state = store.state;
    const shows = modes.includes(state.cells) ? state.cells : "difference";
    mode.show(shows);
    measure.hidden = shows !== "ablation";
    if (!measure.hidden) measure.value = chosenMeasure(source, state).name;
    order.show(state.sorted ? "sorted" : "by number");
    const values = shownValues(source, shows, state);
    columns = source.byRow.map((heads) => (state.sorted ? [...heads].sort((a, b) => values[b] - values[a]) : heads));
    column = [];
    for (const heads of columns) heads.forEach((at, place) => (column[at] = place));
    const words = source.steps && source.width <= 2 ? 130 : 0;
    const available = widthOf(shown.body) - MARGIN.left - MARGIN.right - words;
    const rows = source.layers.length;
    size = { width: Math.min(74, available / source.width), height: Math.min(26, Math.max(5, 470 / rows)) };
    const across = size.width * source.width;
    const bar = Math.min(220, Math.max(90, across));
    const { group, height } = frame(
      svg,
      Math.max(across + words, bar) + MARGIN.left + MARGIN.right,
      rows * size.height + MARGIN.top + MARGIN.bottom,
      MARGIN,
    );
    const largest = Math.max(0, ...values.filter((value) => !Number.isNaN(value)).map(Math.abs));
    const root = (value) => 0.5 + 0.5 * Math.sign(value) * Math.sqrt(Math.abs(value) / (largest || 1));
    const places = { ablation: root, retrieval: (value) => value / (largest || 1) };
    const place = places[shows] ?? ((value) => scaled(value, shows));
    const gap = size.width > 8 && size.height > 8 ? 1.5 : 0.5;
    const list = source.labels.map((_, at) => [
      column[at] * size.width,
      source.row[at] * size.height,
      size.width - gap,
      size.height - gap,
      place(values[at]),
    ]);
    const scores = ["difference", "positional", "symbolic"].includes(shows);
    const faded = source.labels.map((_, at) => scores && restsOnLittle(source, at));
    cells(layer(group, "cells"), list.filter((_, at) => !faded[at]), colours().ramps[shows]);
    cells(layer(group, "faded"), list.filter((_, at) => faded[at]), colours().ramps[shows]);
    signs(layer(group, "signs"), state, shows);
    labels(layer(group, "labels"), across);
    if (words) since(layer(group, "since"), across, state);
    key(layer(group, "scale"), 0, height + 10, bar, colours().ramps[shows], ENDS[shows]);
    layer(group, "chosen");
    layer(group, "lit");
    const whole = ["entropy", "retrieval", "ablation"].includes(shows);
    const scope = !whole ? alone(source, state) : isPart(source, state) ? "Of whole heads. " : "";
    const hints = {
      ablation: () => effectHint(chosenMeasure(source, state), largest),
      retrieval: () =>
        `Attention on the block that holds the answer, at most ${percent(largest)}; chance is ${percent(median(source.array("answer_chance")))} for the median head.`,
    };
    const hint = hints[shows]?.() ?? HINTS[shows];
    const shapes = { ablation: EFFECT_SIGNS, retrieval: "Diamond: above chance." }[shows] ?? SIGNS;
    const pale = faded.some(Boolean) ? " Faded: rests on little attention." : "";
    shown.rehint(`${scope}${hint} ${size.height >= 9 ? shapes : ""}${pale}`);
    mark();
  }

  /** Shapes repeat the meaning of colours. */
  function signs(group, state, shows) {
    const others = {
      ablation: () => effectKinds(source, chosenMeasure(source, state)),
      retrieval: () => source.labels.map((_, at) => (rolesOf(source, at).includes("retrieving") ? "retrieving" : "")),
    };
    const kinds = others[shows]?.() ?? source.kinds(state);
    const r = Math.min(3, size.height / 5, size.width / 5);
    const paths = Object.entries(SHAPES).map(([kind, shape]) => [
      kind,
      size.height < 9 && kind !== "unmeasured"
        ? ""
        : source.labels.map((_, at) => (kinds[at] === kind ? shape(...middle(at), r) : "")).join(""),
    ]);
    group
      .selectAll("path")
      .data(paths)
      .join("path")
      .attr("class", (d) => d[0])
      .attr("d", (d) => d[1]);
  }

  const middle = (at) => [(column[at] + 0.5) * size.width - 0.75, (source.row[at] + 0.5) * size.height - 0.75];

  function labels(group, across) {
    const every = Math.ceil(14 / size.height);
    const down = source.layers
      .map((name, row) => ({ x: -7, y: (row + 0.5) * size.height, text: name, anchor: "end" }))
      .filter((_, row) => row % every === 0);
    const some = Math.ceil(22 / size.width);
    const top = store.state.sorted
      ? []
      : Array.from({ length: source.width }, (_, at) => ({
          x: (at + 0.5) * size.width,
          y: -8,
          text: at,
          anchor: "middle",
        })).filter((_, at) => at % some === 0);
    const title = [{ x: -7, y: -8, text: "layer", anchor: "end" }];
    if (store.state.sorted) title.push({ x: across / 2, y: -8, text: "heads, highest first", anchor: "middle" });
    group
      .selectAll("text")
      .data([...down, ...top, ...title])
      .join("text")
      .attr("x", (d) => d.x)
      .attr("y", (d) => d.y)
      .attr("dominant-baseline", "central")
      .attr("text-anchor", (d) => d.anchor)
      .text((d) => d.text);
  }

  /** The step at which a head became pure, beside its row. */
  function since(group, across, state) {
    const rows = source.byRow
      .map((heads, row) => ({
        row,
        steps: heads.map((at) => pureSince(source, at, state)).filter((step) => step !== undefined),
      }))
      .filter(({ steps }) => steps.length);
    group
      .selectAll("text")
      .data(rows)
      .join("text")
      .attr("x", across + 8)
      .attr("y", (d) => (d.row + 0.5) * size.height)
      .attr("dominant-baseline", "central")
      .text((d) => `pure since ${d.steps.map(count).join(", ")}`);
  }

  const box = (selection, extra) =>
    selection
      .attr("x", (at) => column[at] * size.width - 0.75 - extra)
      .attr("y", (at) => source.row[at] * size.height - 0.75 - extra)
      .attr("width", size.width + 2 * extra)
      .attr("height", size.height + 2 * extra)
      .attr("rx", 2);
  const mark = () =>
    layer(layer(svg, "frame"), "chosen")
      .selectAll("rect")
      .data(selectedIn(source))
      .join("rect")
      .call(box, 0);
  const lightUp = (label) =>
    layer(layer(svg, "frame"), "lit")
      .selectAll("rect")
      .data(placesOf(source, [label]))
      .join("rect")
      .call(box, 1);

  function under(event) {
    const [x, y] = placeOf(event, svg, MARGIN);
    return columns[Math.floor(y / size.height)]?.[Math.floor(x / size.width)];
  }
  answerHeads(svg, source, under, (at) => tipOf(source, at, store.state));
  return { ...shown, draw, mark, light: lightUp };
}

const SHAPES = {
  where: circle,
  what: square,
  worse: (x, y, r) => triangle(x, y, r, -1),
  better: triangle,
  retrieving: diamond,
  unmeasured: cross,
};

const effectHint = ({ words }, largest) =>
  `Change in ${words} when a head is ablated: colours grow with the square root of the change, at most ${number(largest, 3)}.`;

/** Which heads differ from random heads, and in which direction. */
const effectKinds = (source, measure) =>
  Array.from(harm(source, measure, "against"), (lost, at) =>
    Number.isNaN(lost) ? "unmeasured" : counts(source, measure, at) ? (lost > 0 ? "worse" : "better") : "",
  );

function shownValues(source, shows, state) {
  if (shows === "ablation") return harm(source, chosenMeasure(source, state));
  if (shows === "retrieval") return source.array("answer");
  if (shows !== "difference") return source.values(shows, state);
  const symbolic = source.values("symbolic", state);
  return Float64Array.from(source.values("positional", state), (value, at) => value - symbolic[at]);
}

/** The position of a value on the colour ramp, 0 to 1. */
export const scaled = (value, shows) => (shows === "difference" ? (value + 1) / 2 : value);
