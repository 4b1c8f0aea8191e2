// Every head at (positional, symbolic): where, what, both or neither.

import { line } from "d3-shape";
import { axes, colours, frame, layer, placeOf, unit, widthOf } from "./chart.js";
import { figurePanel } from "./figure.js";
import { corners, legend, names, radius } from "./plane-background.js";
import { change, choose, light, selectedIn, store } from "./store.js";
import { announce, h, percent, tip } from "./ui.js";
import { alone, headRows, isPart, moveWith, restsOnLittle, sentence, tipOf } from "./words.js";

const MARGIN = { left: 46, top: 10, right: 12, bottom: 88 };
const TRAIL = 16; // checkpoints
const EDGE = 6; // pixels
const NAMES = 12; // of the heads selected last
const NAME = 15; // pixels from a name to what it may not cover
const ROWS = [0, ...Array.from({ length: NAMES - 1 }, (_, n) => [(n + 1) * NAME, -(n + 1) * NAME]).flat()];

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
    if (isPart(source, state)) dodge(drawn, width);
    trails(layer(group, "trails"), state, shade, last);
    layer(group, "heads")
      .selectAll("circle")
      .data(drawn, (d) => d.label)
      .join("circle")
      .attr("cx", (d) => d.x)
      .attr("cy", (d) => d.y)
      .attr("r", (d) => d.r)
      .attr("fill", (d) => d.fill)
      .classed("little", (d) => restsOnLittle(source, d.at));
    names(layer(group, "names"), source.thresholds, width);
    layer(group, "moves");
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
    const chosen = selectedIn(source)
      .map((at) => places[at])
      .filter((place) => place && !Number.isNaN(place.x + place.y));
    const lines = moves(layer(layer(svg, "frame"), "moves"), chosen);
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
      .data(named(chosen.slice(-NAMES), lines))
      .join("text")
      .attr("x", (d) => d.x + d.side * (d.r + 7))
      .attr("y", (d) => d.y + d.lower)
      .attr("text-anchor", (d) => (d.side < 0 ? "end" : "start"))
      .text((d) => d.label);
  }

  /** Where the names of heads are: beside their dots, away from the lines that begin there and from other names. */
  function named(chosen, lines) {
    const done = [];
    for (const d of chosen) {
      const side = d.x > x(0.85) ? -1 : 1;
      const along = lines.filter(({ at }) => at === d.at).flatMap(({ to }) => beginning(d, to));
      const room = (lower) => {
        const [mx, my] = [d.x + side * 22, d.y + lower]; // the middle of the name
        const free = done.every((other) => Math.abs(other.mx - mx) > 2 * NAME || Math.abs(other.my - my) >= NAME);
        return free ? Math.min(NAME, ...along.map(([px, py]) => Math.hypot((mx - px) / 2, my - py))) : -1;
      };
      const places = ROWS.filter((lower) => !lower || (d.y + lower > 0 && d.y + lower < y(0)));
      const most = () => places.reduce((best, place) => (room(place) > room(best) ? place : best));
      const lower = places.find((place) => room(place) > 0.6 * NAME) ?? most(); // the nearest that is free
      done.push({ ...d, side, lower, mx: d.x + side * 22, my: d.y + lower });
    }
    return done;
  }

  /** A line from each selected head to its place on every other task. */
  function moves(group, chosen) {
    const part = isPart(source, store.state);
    const ends = (source.tasks ?? []).flatMap((name, task) => {
      if (part) return [];
      const [positional, symbolic] = ["positional", "symbolic"].map((axis) => source.array(`task_${task}_${axis}`));
      return chosen.map((d) => ({ ...d, name, to: [x(positional[d.at]), y(symbolic[d.at])] }));
    });
    const drawn = ends.filter(({ to }) => !Number.isNaN(to[0] + to[1]));
    group
      .selectAll("path")
      .data(drawn)
      .join("path")
      .attr("d", (d) => `M${d.x},${d.y}L${d.to.join(",")}`);
    group
      .selectAll("circle")
      .data(drawn)
      .join("circle")
      .attr("cx", (d) => d.to[0])
      .attr("cy", (d) => d.to[1])
      .attr("r", 4);
    return drawn;
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
        .attr("d", `M${around(lasso).map((p) => p.join(",")).join("L")}Z`);
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
    if (path && path.length > 1) {
      const inside = places.filter((place) => within(around(path), place.x, place.y)).map((place) => place.label);
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
  const part = isPart(source, state);
  const size = part ? " Its size is that of the whole head; dots that would cover each other are moved sideways." : "";
  const tasks = source.tasks?.length && !part ? ` A line leads from a selected head to its place on ${source.tasks.join(" and ")}.` : "";
  const faded = source.roles?.["rests on little"] ? ` Faded: less than ${percent(source.criteria.little)} of its attention is on the blocks.` : "";
  return `${alone(source, state)}Every dot is a head.${size} Right: its attention stays in place when contents are swapped. Up: it follows the contents.${faded}${tasks} ${many}`;
}

/** Points of a line from a head to another place: those close enough to the head for its name, and the last. */
function beginning(d, [tx, ty]) {
  const length = Math.max(1, Math.hypot(tx - d.x, ty - d.y));
  const near = [0.2, 0.4, 0.6, 0.8, 1].map((part) => Math.min(1, (part * 4 * NAME) / length));
  return [...near, 1].map((part) => [d.x + part * (tx - d.x), d.y + part * (ty - d.y)]);
}

/** The region that was drawn around; a drag that is nearly straight spans a rectangle. */
function around(path) {
  const [first, last] = [path[0], path.at(-1)];
  const area = path.reduce((sum, [a, b], at) => sum + a * path.at(at - 1)[1] - path.at(at - 1)[0] * b, 0) / 2;
  const reach = Math.max(...path.map(([a, b]) => Math.hypot(a - first[0], b - first[1])));
  if (Math.abs(area) > 0.05 * reach * reach) return path;
  const [left, right] = [Math.min(first[0], last[0]) - EDGE, Math.max(first[0], last[0]) + EDGE];
  const [top, bottom] = [Math.min(first[1], last[1]) - EDGE, Math.max(first[1], last[1]) + EDGE];
  return [[left, top], [right, top], [right, bottom], [left, bottom]]; // prettier-ignore
}

/** Move dots sideways that would cover each other; the first, largest ones stay. */
function dodge(drawn, width) {
  const done = [];
  for (const place of [...drawn].sort((a, b) => a.y - b.y)) {
    const near = done.filter((other) => Math.abs(other.y - place.y) < 2 * EDGE && Math.abs(other.from - place.x) < EDGE);
    const inwards = place.x > width / 2 ? -1 : 1;
    place.from = place.x;
    const covers = () => near.some((other) => Math.hypot(other.x - place.x, other.y - place.y) < 0.8 * (other.r + place.r));
    while (covers() && Math.abs(place.x - place.from) < 0.3 * width) place.x += inwards * 3;
    done.push(place);
  }
}

function within(path, x, y) {
  let inside = false;
  for (let i = 0, j = path.length - 1; i < path.length; j = i++) {
    const [[a, b], [c, d]] = [path[i], path[j]];
    if (b > y !== d > y && x < ((c - a) * (y - b)) / (d - b) + a) inside = !inside;
  }
  return inside;
}
