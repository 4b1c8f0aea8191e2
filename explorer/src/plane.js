// Every head at (positional, symbolic): where, what, both or neither.

import { line } from "d3-shape";
import { axes, canvas, colours, frame, layer, placeOf, unit, widthOf } from "./chart.js";
import { change, choose, light, store } from "./store.js";
import { announce, csvFile, h, panel, svgFile, tip } from "./ui.js";
import { headRows, moveWith, sentence, tipOf } from "./words.js";

const MARGIN = { left: 46, top: 10, right: 12, bottom: 88 };
const TRAIL = 16; // checkpoints

export function plane(source) {
  const svg = canvas("The plane of heads. Arrow keys move through heads and layers.", {
    interactive: true,
    name: "plane",
  });
  const back = h("button", { type: "button", onclick: () => change({ frequency: null }) }, "all frequencies again");
  const shown = panel("plane", "The plane", hint(source, store.state), {
    csv: () => csvFile(`${source.name}-heads`, headRows(source, store.state)),
    svg: () => svgFile(`${source.name}-plane`, svg.node()),
    tools: [back],
  });
  shown.body.append(svg.node());
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
    back.hidden = source.frequencyAt(state) < 0;
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

const radius = (entropy) => 2.6 + 4.2 * Math.sqrt(1 - Math.min(1, Math.max(0, Number.isNaN(entropy) ? 1 : entropy)));

function hint(source, state) {
  const many = source.steps ? "Heads move as training goes on and leave a trail." : "Click one, drag around several.";
  const at = source.frequencyAt(state);
  const only = at >= 0 ? `At frequency ${state.frequency} alone. ` : "";
  return `${only}Every dot is a head. Right: its attention stays where it was when contents are swapped. Up: it follows what was moved. ${many}`;
}

/** The corners that name a head, each with its word. */
function corners(group, { high, low }, size) {
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

/** What colour and size say; in two lines where one is too narrow. */
function legend(group, width) {
  const shade = colours().layer;
  const [parts, length, down] = [24, width > 400 ? 90 : 60, width > 380 ? 0 : 17];
  group
    .selectAll("rect")
    .data(Array.from({ length: parts }, (_, at) => at))
    .join("rect")
    .attr("x", (d) => 74 + (d * length) / parts)
    .attr("y", -8)
    .attr("width", length / parts + 0.5)
    .attr("height", 9)
    .attr("fill", (d) => shade(d / (parts - 1)));
  const left = down ? 74 : width - 104;
  const sizes = [1, 0.6, 0].map((entropy, at) => ({ x: left + at * 16, r: radius(entropy) }));
  group
    .selectAll("circle")
    .data(sizes)
    .join("circle")
    .attr("cx", (d) => d.x)
    .attr("cy", down - 4)
    .attr("r", (d) => d.r);
  const words = [
    [0, 0, "start", "layer: first"],
    [80 + length, 0, "start", "last"],
    [left - 8, down, "end", "spread out"],
    [left + 44, down, "start", "focused"],
  ];
  group
    .selectAll("text")
    .data(words)
    .join("text")
    .attr("x", (d) => d[0])
    .attr("y", (d) => d[1])
    .attr("text-anchor", (d) => d[2])
    .attr("class", "small")
    .text((d) => d[3]);
}

function within(path, x, y) {
  let inside = false;
  for (let i = 0, j = path.length - 1; i < path.length; j = i++) {
    const [[a, b], [c, d]] = [path[i], path[j]];
    if (b > y !== d > y && x < ((c - a) * (y - b)) / (d - b) + a) inside = !inside;
  }
  return inside;
}
