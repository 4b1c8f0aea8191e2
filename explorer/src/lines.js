// The scores of a head as lines over frequency or training, and what the figures beside them share.

import { extent, max } from "d3-array";
import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { axes, frame, layer, legend, paneOver, paths, placeOf, SHAPES, texts, unit, widthOf } from "./chart.js";
import { figurePanel } from "./figure.js";
import { middle } from "./source.js";
import { change, store } from "./store.js";
import { capital, count, number, tip } from "./ui.js";

export const MARGIN = { left: 46, top: 26, right: 12, bottom: 42 };
const USE = 56; // the height of the bars below
export const thousands = (value) => (value >= 1000 ? `${value / 1000}k` : value);

/** The values along the axis: steps, or rotary frequencies. */
export const places = (source) => source.steps ?? source.frequencies?.filter((id) => id > 0) ?? [];

/** The numbers of a head along the axis; without a head, the medians over all heads. */
export function along(source, name, at) {
  const ids = places(source);
  if (at !== undefined) return Array.from(source.along(name, at)).slice(0, ids.length);
  return source.once(`median ${name}`, () =>
    ids.map((_, n) => middle(source.labels.map((_, one) => source.along(name, one)[n]))),
  );
}

function rows(source, at) {
  const names = source.steps
    ? ["positional", "symbolic", "entropy", "mean_frequency"]
    : ["angle", "positional", "symbolic", "use_norm", "use_max"];
  const columns = names.map((name) => [name, along(source, name, at)]);
  const head = at === undefined ? "median" : source.labels[at];
  return places(source).map((id, n) => ({
    head,
    [source.steps ? "step" : "frequency"]: id,
    ...Object.fromEntries(columns.map(([name, values]) => [name, values[n]])),
  }));
}

export const named = (source, at) => (at === undefined ? "all heads" : `head ${source.labels[at]}`);

/** A panel inside that of a head, whose files are named after the head that is drawn. */
export function headFigure(source, id, title, hint, drawn) {
  return figurePanel(id, title, hint, {
    inner: true,
    file: () => `${source.name}-${named(source, drawn())}-${id}`,
    csv: () => rows(source, drawn()),
  });
}

export function cursor(group, source, x, height) {
  const { frequency } = store.state;
  const now = source.steps
    ? [source.steps[source.at(store.state)]]
    : source.frequencyAt(store.state) >= 0
      ? [frequency]
      : [];
  layer(group, "cursor")
    .selectAll("line")
    .data(now)
    .join("line")
    .attr("x1", x)
    .attr("x2", x)
    .attr("y1", 0)
    .attr("y2", height);
}

export function scoreLines(source) {
  let head;
  const ids = places(source);
  const word = source.steps ? "step" : "frequency";
  const hint = source.steps
    ? "Scores at every checkpoint; click to go to a step."
    : "Bars: how much each frequency is used. Click a frequency to see the whole plane at it.";
  const title = source.steps ? "Score over training" : "Score by frequency";
  const { svg, shown } = headFigure(source, `by-${word}`, title, hint, () => head);

  function draw(at) {
    head = at;
    const bars = source.steps ? 0 : USE;
    const { group, width, height } = frame(svg, widthOf(shown.body), 292, { ...MARGIN, bottom: MARGIN.bottom + bars });
    svg.attr("aria-label", `Positional and symbolic score of ${named(source, at)} by ${word}`);
    const x = scaleLinear(source.steps ? extent(ids) : [0.5, ids.length + 0.5], [0, width]);
    const y = unit(height, 0);
    const format = source.steps ? thousands : (value) => (Number.isInteger(value) && value >= 1 ? value : "");
    axes(group, x, y, width, height, {
      across: bars ? "" : "step of training",
      up: "score",
      ticks: Math.min(ids.length, width / 45),
      format,
    });
    cursor(group, source, x, height + bars);
    const drawn = ["positional", "symbolic"].map((axis) => [axis, along(source, axis, at)]);
    const trace = line().defined((d) => Number.isFinite(d[1]));
    paths(group, "line", drawn, ([, values]) => trace(values.map((value, n) => [x(ids[n]), y(value)])));
    paths(group, "mark", drawn, ([axis, values]) =>
      ids.length > 70
        ? ""
        : values.map((value, n) => (Number.isNaN(value) ? "" : SHAPES[axis](x(ids[n]), y(value), 2.7))).join(""),
    );
    legend(group);
    if (bars) use(group, x, width, height + bars + 6, along(source, "use_norm", at));
    answer(group, x, width, height + bars, drawn);
  }

  function use(group, x, width, base, values) {
    const top = max(values) || 1;
    const thick = width / ids.length;
    layer(group, "use")
      .selectAll("rect")
      .data(values.map((value) => value || 0))
      .join("rect")
      .attr("x", (_, n) => x(ids[n]) - thick * 0.4)
      .attr("width", thick * 0.8)
      .attr("y", (value) => base - ((USE - 24) * value) / top)
      .attr("height", (value) => ((USE - 24) * value) / top);
    texts(layer(group, "words"), [
      [-8, base - 8, "end", "use"],
      [width / 2, base + 22, "middle", "frequency, fast to slow", "title"],
    ]);
  }

  /** Hover shows the numbers; a click selects the frequency or the step. */
  function answer(group, x, width, height, drawn) {
    const nearest = (event) => {
      const value = x.invert(placeOf(event, svg, MARGIN)[0]);
      return ids.reduce((best, id, n) => (Math.abs(id - value) < Math.abs(ids[best] - value) ? n : best), 0);
    };
    const pane = paneOver(group, width, height);
    pane.on("pointermove", (event) => {
      const n = nearest(event);
      const lines = [
        `${capital(word)} ${count(ids[n])}`,
        `positional ${number(drawn[0][1][n])} · symbolic ${number(drawn[1][1][n])}`,
      ];
      if (!source.steps)
        lines.push(
          `use ${number(along(source, "use_norm", head)[n])} · one rotation per ${count(Math.round((2 * Math.PI) / along(source, "angle", head)[n]))} tokens`,
        );
      tip(lines, event.clientX, event.clientY);
    });
    pane.on("pointerleave", () => tip(null));
    pane.on("click", (event) => {
      const id = ids[nearest(event)];
      change(source.steps ? { step: id } : { frequency: store.state.frequency === id ? null : id });
    });
  }
  return { ...shown, draw };
}
