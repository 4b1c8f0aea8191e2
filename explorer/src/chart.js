// Shared by all figures: colours of the theme, axes, shapes, legends.

import { axisBottom, axisLeft } from "d3-axis";
import { interpolateRgb, piecewise } from "d3-interpolate";
import { scaleLinear } from "d3-scale";
import { create } from "d3-selection";

let found = null;

// For models; none of them is the colour of where or what.
const MODELS = ["#00876c", "#b03a8c", "#7a5cc0", "#a3342f", "#4f7f00", "#007f8f", "#8a6230", "#56616c"];

/** The colours of the theme in use. */
export function colours() {
  if (found) return found;
  const probe = document.body.appendChild(document.createElement("i"));
  const read = (name) => {
    probe.style.color = `var(--${name})`; // a custom property itself would read as light-dark(…)
    return getComputedStyle(probe).color;
  };
  const [where, what, neutral, ink, early, late] = ["where", "what", "neutral", "ink", "early", "late"].map(read);
  const steps = (ramp) => (value) =>
    Number.isNaN(value) ? "none" : ramp(Math.round(Math.min(1, Math.max(0, value)) * 60) / 60);
  const between = piecewise(interpolateRgb, [what, neutral, where]);
  found = {
    where,
    what,
    neutral,
    ink,
    layer: interpolateRgb(early, late),
    models: MODELS.map((colour) => interpolateRgb(colour, "#ffffff")(isDark() ? 0.4 : 0)),
    ramps: {
      difference: steps(between),
      positional: steps(interpolateRgb(neutral, where)),
      symbolic: steps(interpolateRgb(neutral, what)),
      entropy: steps(interpolateRgb(neutral, read("soft"))),
      retrieval: steps(interpolateRgb(neutral, read("found"))),
      use: steps(interpolateRgb(neutral, read("soft"))),
      kept: steps(interpolateRgb(neutral, where)),
      effect: steps(interpolateRgb(neutral, read("soft"))),
      ablation: steps(piecewise(interpolateRgb, [read("gain"), neutral, read("loss")])),
    },
  };
  probe.remove();
  return found;
}

export const forgetColours = () => (found = null);

/** The theme in use: the one that was chosen with the button, else that of the system. */
export const isDark = () =>
  (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) ===
  "dark";

let widths = new WeakMap();

/** Measure the width of every figure at once: reading a width after a change makes the browser redo its layout. */
export function measure(root) {
  widths = new WeakMap();
  for (const body of root.querySelectorAll(".body")) widths.set(body, body.clientWidth);
}

export const widthOf = (body) => widths.get(body) || 320;

export function canvas(label, { interactive = false, name = "" } = {}) {
  const svg = create("svg").attr("aria-label", label).attr("data-figure", name);
  return interactive ? svg.attr("role", "application").attr("tabindex", 0) : svg.attr("role", "img");
}

/** Resize, and return the group that everything is drawn in. */
export function frame(svg, width, height, margin) {
  svg.attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`);
  const group = svg.selectAll("g.frame").data([0]).join("g").attr("class", "frame");
  group.attr("transform", `translate(${margin.left},${margin.top})`);
  return {
    group,
    width: Math.max(10, width - margin.left - margin.right),
    height: Math.max(10, height - margin.top - margin.bottom),
  };
}

/** A layer of a drawing by its name, created when first used. */
export const layer = (group, name) => group.selectAll(`:scope > g.${name}`).data([0]).join("g").attr("class", name);

export function axes(
  group,
  x,
  y,
  width,
  height,
  { across, up, ticks = 5, upTicks = 5, format = null, upFormat = null },
) {
  const looks = JSON.stringify([x.domain(), x.range(), y.domain(), y.range(), across, up]);
  if (group.property("axes") === looks) return; // text is the slowest to draw
  group.property("axes", looks);
  const bottom = axisBottom(x).ticks(ticks).tickSize(4).tickPadding(4);
  if (format) bottom.tickFormat(format);
  layer(group, "across")
    .attr("transform", `translate(0,${height})`)
    .call(bottom)
    .call(clean)
    .selectAll("text.title")
    .data([across])
    .join("text")
    .attr("class", "title")
    .attr("x", width / 2)
    .attr("y", 34)
    .text((d) => d);
  const left = axisLeft(y).ticks(upTicks).tickSize(4).tickPadding(4);
  if (upFormat) left.tickFormat(upFormat);
  layer(group, "up")
    .call(left)
    .call(clean)
    .selectAll("text.title")
    .data([up])
    .join("text")
    .attr("class", "title")
    .attr("transform", "rotate(-90)")
    .attr("x", -height / 2)
    .attr("y", -34)
    .text((d) => d);
}

const clean = (axis) =>
  axis
    .attr("font-family", null)
    .attr("font-size", null)
    .attr("text-anchor", "middle")
    .selectAll(".tick text")
    .attr("fill", null)
    .attr("text-anchor", null);

export const unit = (from, to) => scaleLinear([0, 1], [from, to]);

/** Rectangles [x, y, width, height, value]; those of one colour are one path, which keeps thousands fast. */
export function cells(group, list, colour) {
  const paths = new Map();
  for (const [x, y, width, height, value] of list) {
    const fill = colour(value);
    paths.set(
      fill,
      `${paths.get(fill) ?? ""}M${round(x)},${round(y)}h${round(width)}v${round(height)}h${round(-width)}z`,
    );
  }
  group
    .selectAll("path")
    .data([...paths])
    .join("path")
    .attr("fill", (d) => d[0])
    .attr("d", (d) => d[1]);
}

/** A bar of colour with words at its ends. */
export function key(group, x, y, width, ramp, [low, high], title = "") {
  const parts = 30;
  const bar = layer(group, "key").attr("transform", `translate(${x},${y})`);
  cells(
    layer(bar, "ramp"),
    Array.from({ length: parts }, (_, at) => [(at * width) / parts, 0, width / parts + 0.4, 8, at / (parts - 1)]),
    ramp,
  );
  texts(bar, [
    [0, 21, "start", low],
    [width, 21, "end", high],
    [width / 2, 21, "middle", title],
  ]);
}

/** Text at positions: [x, y, anchor, text], or with a class instead of small: [x, y, anchor, text, class]. */
export function texts(group, words) {
  group
    .selectAll("text")
    .data(words)
    .join("text")
    .attr("x", (d) => d[0])
    .attr("y", (d) => d[1])
    .attr("text-anchor", (d) => d[2])
    .attr("class", (d) => d[4] ?? "small")
    .text((d) => d[3]);
}

/** One path of a kind (line, mark, band) for each [name, values], drawn by `path`. */
export function paths(group, kind, drawn, path) {
  layer(group, `${kind}s`)
    .selectAll("path")
    .data(drawn)
    .join("path")
    .attr("class", (d) => `${kind} ${d[0]}`)
    .attr("d", path);
}

/** A rectangle that catches the pointer over a whole figure. */
export const paneOver = (group, width, height) =>
  layer(group, "pane").selectAll("rect").data([0]).join("rect").attr("width", width).attr("height", height);

const round = (value) => Math.round(value * 100) / 100;

/** Circles mark where and squares what, so that nothing depends on colour alone. */
export const circle = (x, y, r) =>
  `M${round(x - r)},${round(y)}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`;
export const square = (x, y, r) => `M${round(x - r)},${round(y - r)}h${2 * r}v${2 * r}h${-2 * r}z`;
export const diamond = (x, y, r) => `M${round(x - r)},${round(y)}l${r},${-r}l${r},${r}l${-r},${r}z`;
export const triangle = (x, y, r, up = 1) =>
  `M${round(x - r)},${round(y + 0.8 * up * r)}h${2 * r}L${round(x)},${round(y - up * r)}z`;
export const cross = (x, y, r) => `M${round(x - r)},${round(y - r)}l${2 * r},${2 * r}m0,${-2 * r}l${-2 * r},${2 * r}`;
export const SHAPES = { positional: circle, symbolic: square };

/** The legend of the two scores. */
export function legend(group) {
  const words = layer(group, "legend").attr("transform", "translate(0,-14)");
  const items = [
    ["positional", "where (positional)", 4],
    ["symbolic", "what (symbolic)", 146],
  ];
  words
    .selectAll("path")
    .data(items)
    .join("path")
    .attr("class", (d) => `mark ${d[0]}`)
    .attr("d", (d) => SHAPES[d[0]](d[2], 0, 3.4));
  words
    .selectAll("text")
    .data(items)
    .join("text")
    .attr("class", "small")
    .attr("x", (d) => d[2] + 8)
    .attr("dominant-baseline", "central")
    .text((d) => d[1]);
}

/** The position of the pointer in the coordinates of a drawing. */
export function placeOf(event, svg, margin) {
  const box = svg.node().getBoundingClientRect();
  return [event.clientX - box.left - margin.left, event.clientY - box.top - margin.top];
}
