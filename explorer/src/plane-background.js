// The background of the plane: the corners that define kinds of heads, and the legend of colour and size.

import { colours, layer, texts } from "./chart.js";

/** The more focused a head, the larger its dot. */
export const radius = (entropy) =>
  2.6 + 4.2 * Math.sqrt(1 - Math.min(1, Math.max(0, Number.isNaN(entropy) ? 1 : entropy)));

/** The corners of the plane that define kinds of heads: kind, left, bottom, width, height. */
const regions = ({ high, low }) => [
  ["where", high, 0, 1 - high, low],
  ["what", 0, high, low, 1 - high],
  ["unfocused", high, high, 1 - high, 1 - high],
];

export function cornerRects(group, thresholds, size) {
  group
    .selectAll("rect")
    .data(regions(thresholds))
    .join("rect")
    .attr("class", (d) => d[0])
    .attr("x", (d) => d[1] * size)
    .attr("y", (d) => (1 - d[2] - d[4]) * size)
    .attr("width", (d) => d[3] * size)
    .attr("height", (d) => d[4] * size)
    .attr("rx", 3);
}

/** The names of the corners, drawn over the dots. */
export function names(group, { high, low }, size) {
  texts(group, [
    [high * size - 7, (1 - low / 2) * size + 4, "end", "where", "where"],
    [6, (1 - high) * size + 17, "start", "what", "what"],
    [high * size - 7, ((1 - high) / 2) * size + 4, "end", "unfocused", "unfocused"],
  ]);
}

/** The corners, and the diagonal between where and what. */
export function corners(group, thresholds, size) {
  const back = layer(group, "corners");
  back
    .selectAll("line")
    .data([0])
    .join("line")
    .attr("x1", 0)
    .attr("y1", 0)
    .attr("x2", size)
    .attr("y2", size)
    .attr("class", "either");
  cornerRects(back, thresholds, size);
}

/** The legend of layer colours, with further words in the same group. */
export function layerRamp(group, length, words = []) {
  const shade = colours().layer;
  const parts = 24;
  group
    .selectAll("rect")
    .data(Array.from({ length: parts }, (_, at) => at))
    .join("rect")
    .attr("x", (d) => 74 + (d * length) / parts)
    .attr("y", -8)
    .attr("width", length / parts + 0.5)
    .attr("height", 9)
    .attr("fill", (d) => shade(d / (parts - 1)));
  texts(group, [[0, 0, "start", "layer: first"], [80 + length, 0, "start", "last"], ...words]);
}

/** The legend of colour and size, in two lines if one is too narrow. */
export function legend(group, width) {
  const [length, down] = [width > 400 ? 90 : 60, width > 380 ? 0 : 17];
  const left = down ? 74 : width - 104;
  const sizes = [1, 0.6, 0].map((entropy, at) => ({ x: left + at * 16, r: radius(entropy) }));
  group
    .selectAll("circle")
    .data(sizes)
    .join("circle")
    .attr("cx", (d) => d.x)
    .attr("cy", down - 4)
    .attr("r", (d) => d.r);
  layerRamp(group, length, [
    [left - 8, down, "end", "spread out"],
    [left + 44, down, "start", "focused"],
  ]);
}
