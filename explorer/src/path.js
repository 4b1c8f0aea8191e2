// The path of a head through the plane, from the fastest frequency to the slowest or from step to step.

import { line } from "d3-shape";
import { axes, colours, frame, layer, unit, widthOf } from "./chart.js";
import { along, headFigure, MARGIN, named, places } from "./lines.js";
import { store } from "./store.js";
import { capital, count, number, tip } from "./ui.js";

const [LETTER, LINE] = [6.5, 14]; // about the width and the height of small text

export function planePath(source) {
  let head;
  const ids = places(source);
  const word = source.steps ? "step" : "frequency";
  const hint = source.steps
    ? "From the first step (light) to the current one."
    : "Each frequency by itself, from the fastest (light) to the slowest (dark).";
  const { svg, shown } = headFigure(source, "path", "Path through the plane", hint, () => head);

  function draw(at) {
    head = at;
    const full = Math.min(widthOf(shown.body), 300);
    const margin = { ...MARGIN, top: 10 };
    const size = full - margin.left - margin.right;
    const { group } = frame(svg, full, size + margin.top + margin.bottom, margin);
    svg.attr("aria-label", `Path of ${named(source, at)} through the plane by ${word}`);
    const [x, y] = [unit(0, size), unit(size, 0)];
    axes(group, x, y, size, size, { across: "looks at where", up: "looks at what", ticks: 3, upTicks: 3 });
    layer(group, "diagonal")
      .selectAll("line")
      .data([0])
      .join("line")
      .attr("class", "either")
      .attr("x2", size)
      .attr("y2", size);
    const [positional, symbolic] = ["positional", "symbolic"].map((axis) => along(source, axis, at));
    const now = source.steps ? ids[source.at(store.state)] : store.state.frequency;
    const way = ids
      .map((id, n) => ({ id, n, x: x(positional[n]), y: y(symbolic[n]) }))
      .filter((d) => !Number.isNaN(d.x + d.y) && (!source.steps || d.id <= now));
    layer(group, "way")
      .selectAll("path")
      .data([way])
      .join("path")
      .attr(
        "d",
        line(
          (d) => d.x,
          (d) => d.y,
        ),
      );
    const shade = colours().layer;
    layer(group, "dots")
      .selectAll("circle")
      .data(way, (d) => d.id)
      .join("circle")
      .attr("cx", (d) => d.x)
      .attr("cy", (d) => d.y)
      .attr("r", (d) => (d.id === now ? 6 : source.steps ? 2 : 4))
      .attr("fill", (d) => shade(d.n / Math.max(1, ids.length - 1)))
      .on("pointermove", (event, d) =>
        tip(
          [
            `${capital(word)} ${count(d.id)}`,
            `positional ${number(positional[d.n])} · symbolic ${number(symbolic[d.n])}`,
          ],
          event.clientX,
          event.clientY,
        ),
      )
      .on("pointerleave", () => tip(null));
    layer(group, "ends")
      .selectAll("text")
      .data(ends(way, size))
      .join("text")
      .attr("x", (d) => d.x)
      .attr("y", (d) => d.y)
      .attr("text-anchor", (d) => d.anchor)
      .text((d) => d.text);
  }

  /** Words at the first and the last point, one below the other if they would overlap. */
  function ends(way, size) {
    const words = (way.length > 1 ? [way[0], way.at(-1)] : way).map((d, n) => {
      const text = source.steps ? `step ${count(d.id)}` : n ? "slowest" : "fastest";
      const [anchor, x] = d.x > size / 2 ? ["end", d.x - 9] : ["start", d.x + 9];
      const left = anchor === "end" ? x - LETTER * text.length : x;
      return { text, anchor, x, y: d.y + (d.y < 24 ? 14 : -6), left, right: left + LETTER * text.length };
    });
    const [one, other] = words;
    if (other && Math.abs(one.y - other.y) < LINE && one.left < other.right && other.left < one.right) {
      const down = other.y > one.y || one.y < 2 * LINE;
      other.y = one.y + (down ? LINE : -LINE);
    }
    return words;
  }
  return { ...shown, draw };
}
