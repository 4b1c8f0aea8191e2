// Medians and spread of the scores by layer, and the exclusion bound below.

import { extent } from "d3-array";
import { scaleLinear, scaleLog } from "d3-scale";
import { area, line } from "d3-shape";
import { axes, frame, layer, legend, paneOver, paths, placeOf, SHAPES, texts, unit, widthOf } from "./chart.js";
import { figurePanel } from "./figure.js";
import { quartiles } from "./source.js";
import { change, store } from "./store.js";
import { number, tip } from "./ui.js";
import { alone, isPart } from "./words.js";

const MARGIN = { left: 46, top: 26, right: 12, bottom: 42 };
const BOUND = 92; // the height of the lower drawing

export function depth(source) {
  const bounds = source.has("variance") && source.array("variance").some((value) => value > 0);
  const { svg, shown } = figurePanel("depth", "By depth", "", { file: `${source.name}-layers`, csv: () => rows() });

  function hint() {
    const part = isPart(source, store.state);
    const r = part ? null : source.about.correlation?.r;
    const across =
      r === undefined || r === null ? "" : ` Over all heads, the two scores correlate with r = ${number(r)}.`;
    const scores = `${alone(source, store.state)}Median over the heads of each layer; the band covers the middle half of them.${across}`;
    if (!bounds) return scores;
    const held = source
      .array("variance")
      .filter((value, at) => value <= source.array("exclusion_bound")[at] * (1 + 1e-6)).length;
    return `${scores} Below${part ? ", for whole heads" : ""}: the variance of the logits and its exclusion bound, which holds for ${held} of ${source.count} heads.`;
  }

  const spread = (name) =>
    source.byRow.map((heads) => quartiles(heads.map((at) => source.values(name, store.state)[at])));

  function rows() {
    const part = isPart(source, store.state);
    const whole = part ? [] : ["entropy", ...(bounds ? ["variance", "exclusion_bound"] : [])];
    const names = ["positional", "symbolic", ...whole];
    const all = names.map((name) => [name, spread(name)]);
    return source.layers.map((name, row) => ({
      layer: name,
      heads: source.byRow[row].length,
      ...(part ? { frequency: store.state.frequency } : {}),
      ...Object.fromEntries(
        all.flatMap(([one, values]) => [
          [`${one}_lower_quartile`, values[row][0]],
          [`${one}_median`, values[row][1]],
          [`${one}_upper_quartile`, values[row][2]],
        ]),
      ),
    }));
  }

  function draw() {
    const lower = bounds ? BOUND : 0;
    const { group, width, height } = frame(svg, widthOf(shown.body), 270 + lower, {
      ...MARGIN,
      bottom: MARGIN.bottom + lower,
    });
    svg.attr("aria-label", "Median positional and symbolic score of each layer, with the middle half of its heads");
    const last = Math.max(1, source.layers.length - 1);
    const x = scaleLinear([0, last], [0, width]);
    const y = unit(height, 0);
    const format = (value) => (Number.isInteger(value) ? (source.layers[value] ?? "") : "");
    axes(group, x, y, width, height, {
      across: bounds ? "" : "layer",
      up: "median score",
      ticks: Math.min(last, width / 40),
      format,
    });
    const drawn = ["positional", "symbolic"].map((axis) => [axis, spread(axis)]);
    const seen = (d) => !Number.isNaN(d[1]);
    const along = (_, n) => x(n);
    const band = area(
      along,
      (d) => y(d[0]),
      (d) => y(d[2]),
    ).defined(seen);
    const median = line(along, (d) => y(d[1])).defined(seen);
    const marks = (axis, values) => values.map((d, n) => (seen(d) ? SHAPES[axis](x(n), y(d[1]), 2.7) : "")).join("");
    paths(group, "band", drawn, ([, values]) => band(values));
    paths(group, "line", drawn, ([, values]) => median(values));
    paths(group, "mark", drawn, ([axis, values]) => marks(axis, values));
    legend(group);
    if (bounds) exclusion(layer(group, "exclusion").attr("transform", `translate(0,${height + 34})`), x, width);
    answer(group, x, width, height + lower, drawn);
    shown.rehint(hint());
  }

  function exclusion(group, x, width) {
    const height = BOUND - 22;
    const drawn = [
      ["variance", spread("variance")],
      ["bound", spread("exclusion_bound")],
    ];
    const [low, high] = extent(drawn.flatMap(([, values]) => values.map((d) => d[1])).filter((value) => value > 0));
    const y = scaleLog([low / 1.2, high * 1.2], [height, 0]);
    axes(group, x, y, width, height, {
      across: "layer",
      up: "variance",
      ticks: Math.min(source.layers.length - 1, width / 40),
      format: (value) => (Number.isInteger(value) ? (source.layers[value] ?? "") : ""),
      upTicks: 3,
      upFormat: (value) => (/^1|^0\.0*1$/.test(String(value)) ? value : ""),
    });
    const trace = line(
      (_, n) => x(n),
      (d) => y(d[1]),
    ).defined((d) => d[1] > 0);
    paths(group, "line", drawn, ([, values]) => trace(values));
    const variance = isPart(source, store.state) ? "solid: variance, whole heads" : "solid: variance of logits";
    texts(layer(group, "words"), [
      [2, -5, "start", "dashed: the bound"],
      [134, -5, "start", variance],
    ]);
  }

  function answer(group, x, width, height, drawn) {
    const under = (event) =>
      Math.min(source.layers.length - 1, Math.max(0, Math.round(x.invert(placeOf(event, svg, MARGIN)[0]))));
    const pane = paneOver(group, width, height);
    pane.on("pointermove", (event) => {
      const row = under(event);
      const words = drawn.map(
        ([axis, values]) =>
          `${axis} ${number(values[row][1])} (${number(values[row][0])} to ${number(values[row][2])})`,
      );
      tip(
        [`Layer ${source.layers[row]}: ${source.byRow[row].length} heads`, ...words, "click to select its heads"],
        event.clientX,
        event.clientY,
      );
    });
    pane.on("pointerleave", () => tip(null));
    pane.on("click", (event) =>
      change({ heads: source.byRow[under(event)].map((at) => source.labels[at]), swap: null }),
    );
  }
  return { ...shown, draw, mark() {}, light() {} };
}
