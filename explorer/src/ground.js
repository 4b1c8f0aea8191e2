// What the plane stands on: the corners that name a head, and what colour and size of a dot say.

import { colours, layer, smallWords } from "./chart.js";

/** The more focused a head, the larger its dot. */
export const radius = (entropy) =>
  2.6 + 4.2 * Math.sqrt(1 - Math.min(1, Math.max(0, Number.isNaN(entropy) ? 1 : entropy)));

/** The corners that name a head, each with its word. */
export function corners(group, { high, low }, size) {
  const regions = [
    {
      kind: "where",
      x: high,
      y: 0,
      width: 1 - high,
      height: low,
      text: "where",
      at: [high, low / 2],
      anchor: "end",
      dx: -7,
      dy: 4,
    },
    {
      kind: "what",
      x: 0,
      y: high,
      width: low,
      height: 1 - high,
      text: "what",
      at: [0, high],
      anchor: "start",
      dx: 6,
      dy: 17,
    },
    {
      kind: "unfocused",
      x: high,
      y: high,
      width: 1 - high,
      height: 1 - high,
      text: "unfocused",
      at: [high, (1 + high) / 2],
      anchor: "end",
      dx: -7,
      dy: 4,
    },
  ];
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
  back
    .selectAll("rect")
    .data(regions)
    .join("rect")
    .attr("class", (d) => d.kind)
    .attr("x", (d) => d.x * size)
    .attr("y", (d) => (1 - d.y - d.height) * size)
    .attr("width", (d) => d.width * size)
    .attr("height", (d) => d.height * size)
    .attr("rx", 3);
  back
    .selectAll("text")
    .data(regions)
    .join("text")
    .attr("class", (d) => d.kind)
    .attr("x", (d) => d.at[0] * size + d.dx)
    .attr("y", (d) => (1 - d.at[1]) * size + d.dy)
    .attr("text-anchor", (d) => d.anchor)
    .text((d) => d.text);
}

/** Which layer a colour stands for, with room for more words in the same group. */
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
  smallWords(group, [[0, 0, "start", "layer: first"], [80 + length, 0, "start", "last"], ...words]);
}

/** What colour and size say; in two lines where one is too narrow. */
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
