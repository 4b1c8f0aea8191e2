// The attention of every head by sequence length, and the length at which it loses the next token of its path.

import { extent, max } from "d3-array";
import { scaleLinear, scaleLog } from "d3-scale";
import { line } from "d3-shape";
import { axes, circle, colours, diamond, frame, layer, placeOf, triangle, widthOf } from "./chart.js";
import { answerHeads, figurePanel } from "./figure.js";
import { layerRamp } from "./plane-background.js";
import { MARGIN, round, tokens } from "./lengths.js";
import { placesOf, selectedIn } from "./store.js";
import { choices, count, percent } from "./ui.js";
import { lossWords } from "./words.js";

const PLACES = { next: "next token of the path", self: "itself", later: "later tokens of the path" };
const ENDS = ["measured", "predicted"];

/** The attention of a head on a place, at every length. */
const attentionOn = (source, place, at) => source.lengths.map((_, n) => source.array(place)[n * source.count + at]);
const shadeOf = (source, at) => colours().layer(source.row[at] / Math.max(1, source.layers.length - 1));

export function attentionByLength(source) {
  let place = "next";
  const names = Object.keys(PLACES);
  const pick = choices("Attention on", names, place, (one) => ((place = one), pick.show(one), draw()));
  const { svg, shown } = figurePanel("attention-by-length", "Attention by length", "", {
    label: "Attention of every head on its path, by length. Arrow keys move through heads and layers.",
    interactive: true,
    file: `${source.name}-attention-by-length`,
    csv: () =>
      source.labels.flatMap((head, at) =>
        source.lengths.map((length, n) => ({
          head,
          length,
          ...Object.fromEntries(names.map((name) => [name, attentionOn(source, name, at)[n]])),
        })),
      ),
    tools: [pick.element],
  });
  let x, y, values;

  function draw() {
    const { group, width, height } = frame(svg, widthOf(shown.body), 330, MARGIN);
    values = source.labels.map((_, at) => attentionOn(source, place, at));
    x = tokens(source, width);
    y = scaleLinear([0, max(values.flat())], [height, 0]).nice();
    axes(group, x, y, width, height, { across: "tokens", up: "attention", format: round });
    layer(group, "traces")
      .selectAll("path")
      .data(values)
      .join("path")
      .attr("class", "line")
      .style("stroke", (_, at) => shadeOf(source, at))
      .attr("d", trace);
    layerRamp(layer(group, "legend").attr("transform", "translate(0,-16)"), 60);
    for (const name of ["lit", "chosen"]) layer(group, name);
    shown.rehint(
      `Mean attention of the last token on ${place === "self" ? "itself" : `the ${PLACES[place]}`}; each line is a head.${place === "next" ? " For a selected head, the length at which it has halved. Circle: measured; diamond: predicted from the shortest sequences alone." : ""}`,
    );
    mark();
  }

  const trace = (all) => line()(all.map((value, n) => [x(source.lengths[n]), y(value)]));
  const highlight = (name, heads) =>
    layer(layer(svg, "frame"), name)
      .selectAll("path.line")
      .data(heads)
      .join("path")
      .attr("class", "line")
      .attr("d", (at) => trace(values[at]));

  function mark() {
    const heads = selectedIn(source);
    highlight("chosen", heads);
    const ends =
      place !== "next" ? [] : heads.flatMap((at) => ENDS.map((end) => [end, source.array(end)[at], values[at][0] / 2]));
    const group = layer(layer(svg, "frame"), "chosen");
    group
      .selectAll("path.end")
      .data(ends.filter(([, length]) => length <= source.lengths.at(-1)))
      .join("path")
      .attr("class", (d) => `end ${d[0]}`)
      .attr("d", ([end, length, half]) => (end === "measured" ? circle : diamond)(x(length), y(half), 4.2));
    group
      .selectAll("text")
      .data(heads.slice(-12))
      .join("text")
      .attr("x", 5)
      .attr("y", (at) => y(values[at][0]) - 8)
      .text((at) => source.labels[at]);
  }

  const column = (px) => {
    const length = Math.log(x.invert(px));
    const gaps = source.lengths.map((one) => Math.abs(Math.log(one) - length));
    return gaps.indexOf(Math.min(...gaps));
  };
  answerHeads(
    svg,
    source,
    (event) => {
      const [px, py] = placeOf(event, svg, MARGIN);
      const n = column(px);
      const gaps = values.map((all) => Math.abs(y(all[n]) - py));
      const best = gaps.indexOf(Math.min(...gaps));
      return gaps[best] < 20 ? best : undefined;
    },
    (at, event) => {
      const n = column(placeOf(event, svg, MARGIN)[0]);
      return [
        `Head ${source.labels[at]} at ${count(source.lengths[n])} tokens`,
        `${percent(values[at][n])} on ${PLACES[place]}`,
        `half is lost at: ${lossWords(source, at)}`,
      ];
    },
  );
  return {
    ...shown,
    draw,
    mark,
    light: (label) => values && highlight("lit", placesOf(source, [label])),
  };
}

export function losses(source) {
  const { svg, shown } = figurePanel(
    "losses",
    "Length at which heads lose their token",
    "The length at which a head has lost half of its attention on the next token of the path. Filled circle: measured; diamond: predicted from the shortest sequences, by moving their contents farther away. Triangle: beyond the lengths measured.",
    {
      label: "The length at which every head loses the next token of its path. Arrow keys move through heads.",
      interactive: true,
      file: `${source.name}-losses`,
      csv: () =>
        source.labels.map((head, at) => ({
          head,
          attention: attentionOn(source, "next", at)[0],
          ...Object.fromEntries(
            ENDS.map((end) => [end, Number.isFinite(source.array(end)[at]) ? source.array(end)[at] : ""]),
          ),
        })),
    },
  );
  let x, y, step;

  function draw() {
    const { group, width, height } = frame(svg, widthOf(shown.body), 330, MARGIN);
    step = width / source.count;
    x = scaleLinear([0, source.count], [0, width]);
    y = scaleLog(extent(source.lengths), [height, 0]);
    axes(group, x, y, width, height, {
      across: "layer.head",
      up: "tokens",
      ticks: Math.min(source.count, width / 34),
      format: (at) => source.labels[at] ?? "",
      upFormat: round,
    });
    layer(group, "across")
      .selectAll(".tick text")
      .attr("dx", step / 2);
    for (const name of ["lit", "chosen"]) layer(group, name);
    const marks = source.labels.flatMap((_, at) =>
      ENDS.map((end, side) => [end, at, source.array(end)[at], (at + 0.5 + (side - 0.5) * 0.36) * step]).filter(
        ([, , length]) => !Number.isNaN(length), // not predicted
      ),
    );
    layer(group, "ends")
      .selectAll("path")
      .data(marks)
      .join("path")
      .attr("class", (d) => `end ${d[0]}`)
      .attr("d", ([end, , length, px]) =>
        length <= source.lengths.at(-1)
          ? (end === "measured" ? circle : diamond)(px, y(length), 4)
          : triangle(px, -5, 4),
      );
    mark();
  }

  const box = (name, heads) =>
    layer(layer(svg, "frame"), name)
      .selectAll("rect")
      .data(heads)
      .join("rect")
      .attr("x", (at) => at * step + 1)
      .attr("y", -12)
      .attr("width", step - 2)
      .attr("height", 330 - MARGIN.top - MARGIN.bottom + 12)
      .attr("rx", 3);
  const mark = () => box("chosen", selectedIn(source));
  answerHeads(
    svg,
    source,
    (event) => {
      const [px] = placeOf(event, svg, MARGIN);
      return px >= 0 && px < source.count * step ? Math.floor(px / step) : undefined;
    },
    (at) => [
      `Head ${source.labels[at]}`,
      `half is lost at: ${lossWords(source, at)}`,
      `${percent(attentionOn(source, "next", at)[0])} on the next token at the shortest length`,
    ],
  );
  return {
    ...shown,
    draw,
    mark,
    light: (label) => step && box("lit", placesOf(source, [label])),
  };
}
