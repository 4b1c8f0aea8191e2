// Every head at (positional, symbolic): where, what, both or neither.

import { line } from "d3-shape";
import { axes, colours, frame, layer, placeOf, unit, widthOf } from "./chart.js";
import { figurePanel } from "./figure.js";
import { corners, legend, radius } from "./plane-background.js";
import { change, choose, light, store } from "./store.js";
import { announce, h, tip } from "./ui.js";
import { alone, headRows, isPart, moveWith, sentence, tipOf } from "./words.js";

const MARGIN = { left: 46, top: 10, right: 12, bottom: 88 };
const TRAIL = 16; // checkpoints

export function plane(source) {
  const back = h("button", { type: "button", onclick: () => change({ frequency: null }) }, "back to all frequencies");
  const { svg, shown } = figurePanel("plane", "The plane", hint(source, store.state), {
    label: "The plane of heads. Arrow keys move through heads and layers.",
    interactive: true,
    file: `${source.name}-plane`,
    table: `${source.name}-heads`,
    csv: () => headRows(source, store.state),
    tools: [back],
  });
  let x,
    y,
    places = [];
  let lasso = null;

  function draw() {
    const state = store.state;
    const full = Math.min(widthOf(shown.body), 560);
    const { group, width } = frame(svg, full, full + MARGIN.bottom - 46, MARGIN);
    const height = width;
    svg
      .attr("height", height + MARGIN.top + MARGIN.bottom)
      .attr("viewBox", `0 0 ${full} ${height + MARGIN.top + MARGIN.bottom}`);
    x = unit(0, width);
    y = unit(height, 0);
    corners(group, source.thresholds, width);
    axes(group, x, y, width, height, {
      across: "looks at where (positional score)",
      up: "looks at what (symbolic score)",
    });
    const positional = source.values("positional", state);
    const symbolic = source.values("symbolic", state);
    const entropy = source.values("entropy", state);
    const shade = colours().layer;
    const last = Math.max(1, source.layers.length - 1);
    places = source.labels.map((label, at) => ({
      label,
      at,
      x: x(positional[at]),
      y: y(symbolic[at]),
      r: radius(entropy[at]),
      fill: shade(source.row[at] / last),
    }));
    const drawn = places.filter((place) => !Number.isNaN(place.x + place.y)).sort((a, b) => b.r - a.r);
    trails(layer(group, "trails"), state, shade, last);
    layer(group, "heads")
      .selectAll("circle")
      .data(drawn, (d) => d.label)
      .join("circle")
      .attr("cx", (d) => d.x)
      .attr("cy", (d) => d.y)
      .attr("r", (d) => d.r)
      .attr("fill", (d) => d.fill);
    layer(group, "chosen");
    layer(group, "lit");
    legend(layer(group, "legend").attr("transform", `translate(0,${height + 58})`), width);
    shown.rehint(hint(source, state));
    back.hidden = !isPart(source, state);
    mark();
  }

  function trails(group, state, shade, last) {
    if (!source.steps) return;
    const until = source.at(state);
    const from = Math.max(0, until - TRAIL);
    const [all, other] = [source.array("positional"), source.array("symbolic")];
    const path = line().defined((d) => !Number.isNaN(d[0] + d[1]));
    group
      .selectAll("path")
      .data(source.labels)
      .join("path")
      .attr("stroke", (_, at) => shade(source.row[at] / last))
      .attr("d", (_, at) =>
        path(
          Array.from({ length: until - from + 1 }, (_, n) => [
            x(all[(from + n) * source.count + at]),
            y(other[(from + n) * source.count + at]),
          ]),
        ),
      );
  }

  function mark() {
    const chosen = store.state.heads
      .map((label) => places[source.places.get(label)])
      .filter((place) => place && !Number.isNaN(place.x + place.y));
    const group = layer(layer(svg, "frame"), "chosen");
    group
      .selectAll("circle")
      .data(chosen)
      .join("circle")
      .attr("cx", (d) => d.x)
      .attr("cy", (d) => d.y)
      .attr("r", (d) => d.r + 3);
    group
      .selectAll("text")
      .data(chosen.slice(-12))
      .join("text")
      .attr("x", (d) => d.x + (d.x > x(0.85) ? -d.r - 7 : d.r + 7))
      .attr("y", (d) => d.y)
      .attr("text-anchor", (d) => (d.x > x(0.85) ? "end" : "start"))
      .text((d) => d.label);
  }

  function lightUp(label) {
    const place = places[source.places.get(label)];
    layer(layer(svg, "frame"), "lit")
      .selectAll("circle")
      .data(place && !Number.isNaN(place.x + place.y) ? [place] : [])
      .join("circle")
      .attr("cx", (d) => d.x)
      .attr("cy", (d) => d.y)
      .attr("r", (d) => d.r + 4);
  }

  function nearest([px, py], reach = 16) {
    let best = null,
      least = reach * reach;
    for (const place of places) {
      const distance = (place.x - px) ** 2 + (place.y - py) ** 2;
      if (distance < least) [best, least] = [place, distance];
    }
    return best;
  }

  svg.on("pointerdown", (event) => {
    if (event.button === 0 && event.pointerType !== "touch") lasso = [placeOf(event, svg, MARGIN)];
  });
  svg.on("pointermove", (event) => {
    const here = placeOf(event, svg, MARGIN);
    if (lasso && (lasso.length > 1 || Math.hypot(here[0] - lasso[0][0], here[1] - lasso[0][1]) > 5)) {
      if (lasso.length === 1) svg.node().setPointerCapture(event.pointerId);
      lasso.push(here);
      layer(layer(svg, "frame"), "lasso")
        .selectAll("path")
        .data([lasso])
        .join("path")
        .attr("d", `M${lasso.map((p) => p.join(",")).join("L")}Z`);
      return tip(null);
    }
    const place = nearest(here);
    light(place?.label ?? null);
    tip(place ? tipOf(source, place.at, store.state) : null, event.clientX, event.clientY);
  });
  svg.on("pointerup", (event) => {
    const path = lasso;
    lasso = null;
    layer(layer(svg, "frame"), "lasso").selectAll("path").remove();
    if (path && path.length > 2) {
      const inside = places.filter((place) => within(path, place.x, place.y)).map((place) => place.label);
      const heads = event.shiftKey ? [...new Set([...store.state.heads, ...inside])] : inside;
      if (heads.length) change({ heads, swap: null });
      announce(`${inside.length} heads selected`);
      return;
    }
    const place = nearest(placeOf(event, svg, MARGIN));
    if (place) choose(place.label, event.shiftKey);
    if (place) announce(sentence(source, place.at, store.state));
  });
  svg.on("pointerleave", () => (light(null), tip(null)));
  svg.on("keydown", (event) => moveWith(event, source));
  return { ...shown, draw, mark, light: lightUp };
}

function hint(source, state) {
  const many = source.steps ? "Heads move during training and leave a trail." : "Click a dot, or drag around several.";
  const size = isPart(source, state) ? " Its size is that of the whole head." : "";
  return `${alone(source, state)}Every dot is a head.${size} Right: its attention stays in place when contents are swapped. Up: it follows the contents. ${many}`;
}

function within(path, x, y) {
  let inside = false;
  for (let i = 0, j = path.length - 1; i < path.length; j = i++) {
    const [[a, b], [c, d]] = [path[i], path[j]];
    if (b > y !== d > y && x < ((c - a) * (y - b)) / (d - b) + a) inside = !inside;
  }
  return inside;
}
