// The whole model by frequency and layer; for a series, every head by step.

import { max } from "d3-array";
import { cells, colours, frame, key, layer, placeOf, widthOf } from "./chart.js";
import { figurePanel } from "./figure.js";
import { scaled } from "./grid.js";
import { middle } from "./source.js";
import { change, choose, store } from "./store.js";
import { choices, count, number, tip } from "./ui.js";

const MARGIN = { left: 46, top: 8, right: 12, bottom: 76 };
const ENDS = {
  difference: ["what", "where"],
  positional: ["0", "1 where"],
  symbolic: ["0", "1 what"],
  use: ["unused", "most used"],
  kept: ["dropped", "kept"],
  effect: ["no effect", "largest effect"],
};

/** A heatmap of rows and columns that answers to hover and click; `now` is the marked column, `nowRow` the marked row. */
export function heatmap(given) {
  const { id, title, hint, name, modes, rows, columns, rowTitle, columnTitle, value, tips, click, now, csv } = given;
  const nowRow = given.nowRow ?? (() => -1);
  let mode = modes[0];
  const pick = choices("Colour cells by", modes, mode, (one) => ((mode = one), pick.show(one), draw()));
  const { svg, shown } = figurePanel(id, title, "", {
    label: `${title}. ${hint(modes[0])}`,
    file: `${name}-${id}`,
    csv,
    tools: [pick.element],
  });
  let size = { width: 1, height: 1 };

  function draw() {
    const tall = Math.min(20, Math.max(3.5, 330 / rows.length));
    const { group, width, height } = frame(
      svg,
      widthOf(shown.body),
      rows.length * tall + MARGIN.top + MARGIN.bottom,
      MARGIN,
    );
    size = { width: width / columns.length, height: tall };
    const gap = size.width > 7 && tall > 7 ? 1 : 0;
    const list = [];
    rows.forEach((_, row) =>
      columns.forEach((_, column) =>
        list.push([
          column * size.width,
          row * tall,
          size.width - gap + (gap ? 0 : 0.3),
          tall - gap + (gap ? 0 : 0.3),
          scaled(value(mode, row, column), mode),
        ]),
      ),
    );
    cells(layer(group, "cells"), list, colours().ramps[mode]);
    const down = rows
      .map((text, row) => [-7, (row + 0.5) * tall, "end", text])
      .filter((_, row) => row % Math.ceil(14 / tall) === 0);
    const across = columns
      .map((text, column) => [(column + 0.5) * size.width, height + 12, "middle", count(text)])
      .filter((_, column) => column % Math.ceil(44 / size.width) === 0);
    layer(group, "labels")
      .selectAll("text")
      .data([...down, ...across])
      .join("text")
      .attr("x", (d) => d[0])
      .attr("y", (d) => d[1])
      .attr("text-anchor", (d) => d[2])
      .attr("dominant-baseline", "central")
      .text((d) => d[3]);
    layer(group, "titles")
      .selectAll("text")
      .data([
        [width / 2, height + 31, columnTitle, ""],
        [-height / 2, -34, rowTitle, "rotate(-90)"],
      ])
      .join("text")
      .attr("class", "title")
      .attr("x", (d) => d[0])
      .attr("y", (d) => d[1])
      .attr("transform", (d) => d[3])
      .text((d) => d[2]);
    key(layer(group, "scale"), width - 180, height + 46, 180, colours().ramps[mode], ENDS[mode]);
    shown.rehint(hint(mode));
    mark();
  }

  function mark() {
    const column = now();
    const tall = rows.length * size.height;
    layer(layer(svg, "frame"), "chosen")
      .selectAll("rect")
      .data([
        ...(column >= 0 ? [[column * size.width, 0, size.width, tall]] : []),
        ...(nowRow() >= 0 ? [[0, nowRow() * size.height, columns.length * size.width, size.height]] : []),
      ])
      .join("rect")
      .attr("x", (d) => d[0] - 1)
      .attr("y", (d) => d[1] - 1)
      .attr("width", (d) => d[2] + 1)
      .attr("height", (d) => d[3] + 1)
      .attr("rx", 2);
  }

  const under = (event) => {
    const [x, y] = placeOf(event, svg, MARGIN);
    const [row, column] = [Math.floor(y / size.height), Math.floor(x / size.width)];
    return row >= 0 && row < rows.length && column >= 0 && column < columns.length ? [row, column] : null;
  };
  svg.on("pointermove", (event) => {
    const at = under(event);
    tip(at && tips(...at), event.clientX, event.clientY);
  });
  svg.on("pointerleave", () => tip(null));
  svg.on("click", (event) => under(event) && click(...under(event), event));
  return { ...shown, draw, mark, light() {} };
}

export function frequencyHeat(source) {
  const ids = source.frequencies;
  const table = (name) =>
    source.once(`heat ${name}`, () => {
      const all = source.array(`frequency_${name}`);
      return source.byRow.map((heads) => ids.map((_, n) => middle(heads.map((at) => all[at * ids.length + n]))));
    });
  const value = (mode, row, column) => {
    if (mode === "difference") return table("positional")[row][column] - table("symbolic")[row][column];
    if (mode === "use")
      return Math.sqrt(table("use_norm")[row][column] / source.once("most used", () => max(table("use_norm").flat())));
    return table(mode)[row][column];
  };
  const angle = (row, column) => source.array("frequency_angle")[source.byRow[row][0] * ids.length + column];
  return heatmap({
    id: "frequencies",
    title: "Frequencies and layers",
    name: source.name,
    modes: ["difference", "positional", "symbolic", "use"],
    hint: (mode) =>
      mode === "use"
        ? "How much the heads of a layer use each frequency: median norm of its logits; colours grow with the square root."
        : "Each frequency by itself, median over the heads of a layer. Click a column to see the plane at that frequency.",
    rows: source.layers,
    columns: ids,
    rowTitle: "layer",
    columnTitle: ids.includes(0) ? "frequency, fast to slow; 0: non-rotary" : "frequency, fast to slow",
    value,
    now: () => source.frequencyAt(store.state),
    tips: (row, column) => [
      `Layer ${source.layers[row]}, frequency ${ids[column]}`,
      `positional ${number(table("positional")[row][column])} · symbolic ${number(table("symbolic")[row][column])} · use ${number(table("use_norm")[row][column])}`,
      angle(row, column)
        ? `one rotation per ${count(Math.round((2 * Math.PI) / angle(row, column)))} tokens`
        : "non-rotary dimensions",
    ],
    click: (row, column) => change({ frequency: store.state.frequency === ids[column] ? null : ids[column] }),
    csv: () =>
      source.labels.flatMap((_, at) =>
        ids.map((frequency, n) => ({
          layer: source.layers[source.row[at]],
          head: source.head[at],
          frequency,
          ...Object.fromEntries(
            ["angle", "positional", "symbolic", "use_norm", "use_max"].map((name) => [
              name,
              source.array(`frequency_${name}`)[at * ids.length + n],
            ]),
          ),
        })),
      ),
  });
}

export function stepHeat(source) {
  const at = (name, head, step) => source.array(name)[step * source.count + head];
  const value = (mode, head, step) =>
    mode === "difference" ? at("positional", head, step) - at("symbolic", head, step) : at(mode, head, step);
  return heatmap({
    id: "training",
    title: "Heads over training",
    name: source.name,
    modes: ["difference", "positional", "symbolic"],
    hint: () => "Every head at every checkpoint. Click to go to a step and select a head.",
    rows: source.labels,
    columns: source.steps,
    rowTitle: "layer.head",
    columnTitle: "step of training",
    value,
    now: () => source.at(store.state),
    tips: (head, step) => [
      `Head ${source.labels[head]} at step ${count(source.steps[step])}`,
      `positional ${number(at("positional", head, step))} · symbolic ${number(at("symbolic", head, step))}`,
    ],
    click: (head, step) => (change({ step: source.steps[step] }), choose(source.labels[head])),
    csv: () =>
      source.steps.flatMap((step, n) =>
        source.labels.map((_, head) => ({
          step,
          layer: source.layers[source.row[head]],
          head: source.head[head],
          ...Object.fromEntries(
            ["positional", "symbolic", "entropy", "mean_frequency"].map((name) => [name, at(name, head, n)]),
          ),
        })),
      ),
  });
}
