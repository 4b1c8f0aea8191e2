// All models on one plane, and small planes of each model side by side.

import { chooseHead, colourOf, modelButton, modelLines, moveAmong, shapeOf } from "./atlas.js";
import { axes, circle, colours, frame, layer, placeOf, unit, widthOf } from "./chart.js";
import { figurePanel } from "./figure.js";
import { cornerRects, corners, layerRamp, names as cornerNames } from "./plane-background.js";
import { light, placesOf, selectedIn, store } from "./store.js";
import { h, number, tip } from "./ui.js";
import { tipOf } from "./words.js";

const MARGIN = { left: 46, top: 10, right: 12, bottom: 46 };
const SHADES = 8; // of layers, one path each

/** The more heads, the smaller their dots. */
const sizeOf = (count) => Math.min(3.6, Math.max(1.3, 90 / Math.sqrt(count)));

const headRows = (source) =>
  source.labels.map((_, at) => ({
    model: source.models[source.unfolded.model[at]].model,
    layer: source.layers[source.row[at]],
    head: source.head[at],
    kind: source.kindOf(at),
    ...Object.fromEntries(
      ["positional", "symbolic", "entropy"].map((name) => [name, Number(source.array(name)[at].toFixed(5))]),
    ),
  }));

/** The head nearest to a point, among those from one number to another. */
function nearest(xs, ys, [px, py], from, until, reach = 14) {
  let best;
  let least = reach * reach;
  for (let at = from; at < until; at++) {
    const distance = (xs[at] - px) ** 2 + (ys[at] - py) ** 2;
    if (distance < least) [best, least] = [at, distance];
  }
  return best;
}

/** Hover names the head under the pointer, click selects it, keys move through heads and models. */
function answering(svg, source, under) {
  svg.on("pointermove", (event) => {
    const { head, model } = under(event);
    light(head !== undefined ? source.labels[head] : (source.models[model]?.model ?? null));
    const words =
      head !== undefined ? tipOf(source, head, store.state) : model !== undefined ? modelLines(source, model) : null;
    tip(words, event.clientX, event.clientY);
  });
  svg.on("pointerleave", () => (light(null), tip(null)));
  svg.on("click", (event) => {
    const { head, model } = under(event);
    if (head !== undefined) chooseHead(source, head, event.shiftKey);
    else if (model !== undefined) chooseHead(source, source.models[model].from, false);
  });
  svg.on("keydown", (event) => moveAmong(event, source));
}

/** Rings around the selected heads or the one under the pointer, with names if `words` gives them. */
function rings(group, name, heads, place, words) {
  const over = layer(group, name);
  over
    .selectAll("circle")
    .data(heads)
    .join("circle")
    .attr("cx", (at) => place(at)[0])
    .attr("cy", (at) => place(at)[1])
    .attr("r", 6);
  over
    .selectAll("text")
    .data(words ? heads.slice(-6) : [])
    .join("text")
    .attr("x", (at) => place(at)[0] + (place(at)[2] ? -11 : 11))
    .attr("y", (at) => place(at)[1])
    .attr("text-anchor", (at) => (place(at)[2] ? "end" : "start"))
    .text(words);
}

/** What lights a head: a ring around it, and its model highlighted. */
const lightIn = (svg, source, place, highlight) => (label) => {
  if (!svg.attr("width")) return; // not drawn yet
  rings(layer(svg, "frame"), "lit", placesOf(source, [label]), place);
  highlight();
};

export function overlay(source) {
  const { svg, shown } = figurePanel(
    "overlay",
    "One plane",
    "Every dot is a head; colour and shape show its model. Right: it looks at where (positional score). Up: it looks at what (symbolic score). Hover over a model to highlight it, click to keep it highlighted.",
    {
      label: "All heads of all models on one plane. Arrow keys move through heads and layers, page keys through models.",
      interactive: true,
      file: `${source.name}-plane`,
      table: `${source.name}-heads`,
      csv: () => headRows(source),
    },
  );
  const names = source.models.map((_, at) => modelButton(source, at));
  const legend = h(
    "div",
    { class: "models" },
    ...source.families.map(({ family }) =>
      h(
        "div",
        { role: "group", "aria-label": family },
        source.families.length > 1 ? h("span", { class: "family" }, family) : null,
        ...names.filter((_, at) => source.models[at].family === family).map((one) => one.button),
      ),
    ),
  );
  shown.body.append(legend);
  let xs = [];
  let ys = [];
  let wide = 0;

  function draw() {
    const full = Math.min(widthOf(shown.body), 560);
    const { group, width } = frame(svg, full, full - MARGIN.left - MARGIN.right + MARGIN.top + MARGIN.bottom, MARGIN);
    wide = width;
    const [x, y] = [unit(0, width), unit(width, 0)];
    corners(group, source.thresholds, width);
    axes(group, x, y, width, width, {
      across: "looks at where (positional score)",
      up: "looks at what (symbolic score)",
    });
    [xs, ys] = [source.array("positional").map(x), source.array("symbolic").map(y)];
    const size = sizeOf(source.count);
    layer(group, "dots")
      .selectAll("path")
      .data(source.models)
      .join("path")
      .attr("fill", (one) => colourOf(one.number))
      .attr("fill-opacity", source.count > 4000 ? 0.4 : 0.72)
      .attr("d", (one) => path(one, shapeOf(one.number), size));
    for (const one of names) one.draw();
    cornerNames(layer(group, "names"), source.thresholds, width);
    for (const name of ["front", "chosen", "lit"]) layer(group, name);
    mark();
  }

  function path({ from, until }, shape, size) {
    let d = "";
    for (let at = from; at < until; at++) if (!Number.isNaN(xs[at] + ys[at])) d += shape(xs[at], ys[at], size);
    return d;
  }

  const place = (at) => [xs[at], ys[at], xs[at] > 0.7 * wide];

  /** The highlighted model is drawn again in front, and all others are faint. */
  function highlight() {
    const group = layer(svg, "frame");
    const one = source.highlighted();
    layer(group, "dots").classed("faint", one !== undefined);
    layer(group, "front")
      .selectAll("path")
      .data(one === undefined ? [] : [source.models[one]])
      .join("path")
      .attr("fill", (d) => colourOf(d.number))
      .attr("d", (d) => path(d, shapeOf(d.number), Math.max(3, sizeOf(source.count))));
    names.forEach(({ button }, at) => {
      button.setAttribute("aria-pressed", String(source.models[at].model === store.state.model));
      button.classList.toggle("faint", one !== undefined && one !== at);
    });
  }

  function mark() {
    rings(layer(svg, "frame"), "chosen", selectedIn(source), place, (at) => source.labels[at]);
    highlight();
  }

  answering(svg, source, (event) => {
    const spot = placeOf(event, svg, MARGIN);
    const kept = source.numbers.get(store.state.model);
    const own = kept === undefined ? undefined : nearest(xs, ys, spot, ...source.span(kept), 8);
    return { head: own ?? nearest(xs, ys, spot, 0, source.count) };
  });
  return { ...shown, draw, mark, light: lightIn(svg, source, place, highlight) };
}

const GAP = { x: 16, top: 40, bottom: 6 };

export function sideBySide(source) {
  const { svg, shown } = figurePanel(
    "multiples",
    "Side by side",
    "The same plane for each model. Right: looks at where; up: looks at what. Colour: depth of the layer.",
    {
      label: "One plane per model. Page keys move through models, arrow keys through heads.",
      interactive: true,
      file: `${source.name}-models`,
    },
  );
  let columns, size;
  let places = [];

  const corner = (at) => [
    (at % columns) * (size + GAP.x),
    Math.floor(at / columns) * (size + GAP.top + GAP.bottom) + GAP.top,
  ];

  function draw() {
    const full = widthOf(shown.body);
    const many = source.models.length;
    columns = Math.max(2, Math.min(many, Math.floor((full + GAP.x) / (many > 12 ? 128 : 172))));
    size = Math.min(240, (full + GAP.x) / columns - GAP.x);
    const rows = Math.ceil(many / columns);
    const { group } = frame(svg, full, rows * (size + GAP.top + GAP.bottom) + 30, {
      left: 0,
      top: 0,
      right: 0,
      bottom: 0,
    });
    const [positional, symbolic] = [source.array("positional"), source.array("symbolic")];
    const cells = layer(group, "planes").selectAll("g.one").data(source.models).join("g").attr("class", "one");
    cells.attr("transform", (_, at) => `translate(${corner(at)})`);
    cells
      .selectAll("rect.ground")
      .data([0])
      .join("rect")
      .attr("class", "ground")
      .attr("width", size)
      .attr("height", size)
      .attr("rx", 3);
    cornerRects(layer(cells, "corners"), source.thresholds, size);
    const inset = 4;
    const along = unit(inset, size - inset);
    const up = unit(size - inset, inset);
    places = source.labels.map((_, at) => [along(positional[at]), up(symbolic[at])]);
    cells
      .selectAll("g.dots")
      .data((one) => [one])
      .join("g")
      .attr("class", "dots")
      .selectAll("path")
      .data(shades)
      .join("path")
      .attr("fill", (d) => colours().layer(d[0] / (SHADES - 1)))
      .attr("d", (d) => d[1]);
    const fits = Math.floor(size / 8.2); // bold letters of average width
    cells
      .selectAll("text")
      .data((one) => [
        [one.model.length > fits ? `${one.model.slice(0, fits - 1)}…` : one.model, -19, "named"],
        [`r = ${number(one.r)} · ${one.heads} heads`, -5, "small"],
      ])
      .join("text")
      .attr("class", (d) => d[2])
      .attr("y", (d) => d[1])
      .text((d) => d[0]);
    layerRamp(
      layer(group, "legend").attr("transform", `translate(0,${rows * (size + GAP.top + GAP.bottom) + 22})`),
      60,
    );
    for (const name of ["chosen", "lit"]) layer(group, name);
    mark();
  }

  /** The dots of a model in a few shades of depth, one path per shade. */
  function shades({ from, until }) {
    const size = Math.max(1.2, Math.min(2.6, 34 / Math.sqrt(until - from)));
    const found = Array.from({ length: SHADES }, () => "");
    for (let at = from; at < until; at++) {
      const [x, y] = places[at];
      if (!Number.isNaN(x + y)) found[Math.round(source.depth(at) * (SHADES - 1))] += circle(x, y, size);
    }
    return [...found.entries()].filter(([, d]) => d);
  }

  const place = (at) => {
    const [left, top] = corner(source.unfolded.model[at]);
    return [left + places[at][0], top + places[at][1]];
  };

  function highlight() {
    const one = source.highlighted();
    layer(layer(svg, "frame"), "planes")
      .selectAll("g.one")
      .classed("stands", (_, at) => at === one);
  }

  function mark() {
    rings(layer(svg, "frame"), "chosen", selectedIn(source), place);
    highlight();
  }

  answering(svg, source, (event) => {
    const spot = placeOf(event, svg, { left: 0, top: 0 });
    const model = source.models.findIndex((_, at) => {
      const [left, top] = corner(at);
      return spot[0] >= left && spot[0] <= left + size && spot[1] >= top - GAP.top + 6 && spot[1] <= top + size;
    });
    if (model < 0) return {};
    const [left, top] = corner(model);
    const [from, until] = source.span(model);
    const own = places.slice(from, until);
    const at = nearest(
      own.map((p) => p[0]),
      own.map((p) => p[1]),
      [spot[0] - left, spot[1] - top],
      0,
      own.length,
      9,
    );
    return { model, head: at === undefined ? undefined : from + at };
  });
  return { ...shown, draw, mark, light: lightIn(svg, source, place, highlight) };
}
