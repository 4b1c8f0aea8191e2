// Correlation and medians of every model by family, and how they change with depth.

import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { chooseModel, colourOf, markOf, modelLines, shapeOf } from "./atlas.js";
import { axes, canvas, diamond, frame, layer, placeOf, SHAPES, texts, unit, widthOf } from "./chart.js";
import { figurePanel } from "./figure.js";
import { light, store } from "./store.js";
import { choices, count, csvFile, h, number, panel, tip } from "./ui.js";

const ROW = 21;
const TOP = 40;
const AXES = ["positional", "symbolic"];
const KINDS = ["where", "what", "unfocused", "mixed", "unmeasured"];

/** Families, each with its models below it. */
const linesOf = (source) =>
  source.families.flatMap((family) => [
    { family },
    ...source.models.filter((one) => one.family === family.family).map((model) => ({ model })),
  ]);

/** The table of models, without what only figures need. */
const modelRows = (source) =>
  source.models.map(({ rows, depth, number: _, from, until, firstRow, ...columns }) => columns);

export function byFamily(source) {
  const { svg, shown } = figurePanel(
    "families",
    "By family",
    "Left: correlation of the two scores over the heads of a model, with its 95 % interval; at −1 they exclude each other. Middle: median positional score (circle) and symbolic score (square). Right: share of heads that look at where, look at what, are unfocused or mixed. The row of a family shows the medians of its models.",
    {
      label: "Correlation, medians and kinds of heads of every model, by family. Arrow keys move through models.",
      interactive: true,
      file: `${source.name}-families`,
      table: `${source.name}-models`,
      csv: () => modelRows(source),
    },
  );
  const lines = linesOf(source);
  const far = source.models.some((one) => one.r > 0 || one.r_high > 0) ? 1 : 0; // in most atlases no r is above 0

  function draw() {
    const full = widthOf(shown.body);
    const narrow = full < 620;
    const { group } = frame(svg, full, TOP + lines.length * ROW + 30, { left: 0, top: TOP, right: 0, bottom: 0 });
    const height = lines.length * ROW;
    const left = narrow ? 118 : 210;
    const gap = narrow ? 16 : 40;
    const wide = (full - left - 2 * gap - 12) / 3;
    const starts = [0, 1, 2].map((at) => left + at * (wide + gap));
    const across = [
      scaleLinear([-1, far], [starts[0], starts[0] + wide]),
      unit(starts[1], starts[1] + wide),
      unit(starts[2], starts[2] + wide),
    ];
    const ticks = [
      [-1, -0.5, 0, 0.5, 1].filter((at) => at <= far && (!narrow || far === 0 || Number.isInteger(at))),
      [0, 0.5, 1],
      [],
    ];
    layer(group, "bands")
      .selectAll("rect")
      .data([...lines.keys()])
      .join("rect")
      .attr("class", (n) => (lines[n].family ? "" : "own"))
      .attr("x", 0)
      .attr("width", full)
      .attr("y", (n) => n * ROW + 1)
      .attr("height", ROW - 2)
      .attr("rx", 3);
    const marks = across.flatMap((x, at) => ticks[at].map((value) => [x(value), value]));
    layer(group, "bases")
      .selectAll("line")
      .data(marks)
      .join("line")
      .attr("x1", (d) => d[0])
      .attr("x2", (d) => d[0])
      .attr("y1", -6)
      .attr("y2", height);
    const titles = narrow
      ? ["r", "medians", "kinds"]
      : ["r of the two scores", "medians of the scores", "kinds of heads"];
    texts(layer(group, "ticks"), [
      ...marks.map(([px, value]) => [px, -11, "middle", number(value, Number.isInteger(value) ? 0 : 1)]),
      ...titles.map((text, at) => [starts[at], -27, "start", text]),
    ]);
    const fits = Math.floor((left - 24) / 6.8);
    const short = (text) => (text.length > fits ? `${text.slice(0, fits - 1)}…` : text);
    layer(group, "names")
      .selectAll("text")
      .data(lines)
      .join("text")
      .attr("class", (d) => (d.family ? "named" : "small"))
      .attr("x", (d) => (d.family ? 4 : 18))
      .attr("y", (_, n) => n * ROW + 14.5)
      .text((d) => short(d.family?.family ?? d.model.model));
    const each = lines.flatMap((d, n) => (d.model ? [[d.model, n * ROW + ROW / 2]] : []));
    layer(group, "keys")
      .selectAll("path")
      .data(each)
      .join("path")
      .attr("fill", ([one]) => colourOf(one.number))
      .attr("d", ([one, y]) => shapeOf(one.number)(9, y, 3.6));
    layer(group, "reach")
      .selectAll("line")
      .data(each.filter(([one]) => one.r_low !== null))
      .join("line")
      .attr("x1", ([one]) => across[0](one.r_low))
      .attr("x2", ([one]) => across[0](one.r_high))
      .attr("y1", ([, y]) => y)
      .attr("y2", ([, y]) => y);
    layer(group, "correlations")
      .selectAll("path")
      .data(each.filter(([one]) => one.r !== null))
      .join("path")
      .attr("d", ([one, y]) => diamond(across[0](one.r), y, 4));
    const several = lines.flatMap((d, n) => (d.family?.models > 1 ? [[d.family, n * ROW + ROW / 2]] : []));
    layer(group, "family-correlations")
      .selectAll("path")
      .data(several.filter(([one]) => one.r !== null))
      .join("path")
      .attr("d", ([one, y]) => diamond(across[0](one.r), y, 5));
    for (const axis of AXES)
      layer(group, `medians-${axis}`)
        .selectAll("path")
        .data([...each, ...several].filter(([one]) => one[axis] !== null))
        .join("path")
        .attr("class", ([one]) => (one.model ? `mark ${axis}` : `mark ${axis} whole`))
        .attr("d", ([one, y]) => SHAPES[axis](across[1](one[axis]), y, one.model ? 3.6 : 4.6));
    layer(group, "kinds")
      .selectAll("rect")
      .data(each.flatMap(([one, y]) => bars(one).map((bar) => [...bar, y])))
      .join("rect")
      .attr("class", (d) => d[0])
      .attr("x", (d) => across[2](d[1]))
      .attr("width", (d) => Math.max(0, across[2](d[1] + d[2]) - across[2](d[1]) - 0.8))
      .attr("y", (d) => d[3] - 5.5)
      .attr("height", 11);
    layer(group, "highlight");
    mark();
  }

  function mark() {
    const one = source.highlighted();
    const at = lines.findIndex((d) => d.model && d.model.number === one);
    layer(layer(svg, "frame"), "highlight")
      .selectAll("rect")
      .data(at < 0 ? [] : [at])
      .join("rect")
      .attr("x", 0.75)
      .attr("width", Math.max(10, svg.attr("width") - 1.5))
      .attr("y", (n) => n * ROW + 0.75)
      .attr("height", ROW - 1.5)
      .attr("rx", 3);
  }

  const under = (event) => lines[Math.floor(placeOf(event, svg, { left: 0, top: TOP })[1] / ROW)];
  svg.on("pointermove", (event) => {
    const found = under(event);
    light(found?.model?.model ?? null);
    const words = found?.model
      ? modelLines(source, found.model.number)
      : found && [
          found.family.family,
          `${count(found.family.models)} ${found.family.models === 1 ? "model" : "models"}, medians of them:`,
          `r ${number(found.family.r)} · positional ${number(found.family.positional)} · symbolic ${number(found.family.symbolic)}`,
        ];
    tip(words ?? null, event.clientX, event.clientY);
  });
  svg.on("pointerleave", () => (light(null), tip(null)));
  svg.on("click", (event) => {
    const found = under(event);
    if (found?.model) chooseModel(source, found.model.number);
  });
  svg.on("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step || event.metaKey || event.ctrlKey || event.altKey) return;
    event.preventDefault();
    const now = source.numbers.get(store.state.model) ?? (step > 0 ? -1 : source.models.length);
    const next = Math.min(source.models.length - 1, Math.max(0, now + step));
    if (next !== now) chooseModel(source, next);
  });
  return { ...shown, draw, mark, light: () => svg.attr("width") && mark() };
}

/** Kinds of heads as segments of a bar: name, start, length. */
function bars(one) {
  let start = 0;
  return KINDS.map((kind) => {
    const bar = [kind, start, one[kind]];
    start += one[kind];
    return bar;
  }).filter((bar) => bar[2] > 0);
}

const FIFTHS = ["first fifth", "second fifth", "middle fifth", "fourth fifth", "last fifth"];
const CHARTS = [
  ["positional", "median positional score", [0, 1]],
  ["symbolic", "median symbolic score", [0, 1]],
  ["r", "r of the two scores", [-1, 1]],
];
const MARGIN = { left: 46, top: 12, right: 12, bottom: 42 };

export function byDepth(source) {
  let families = source.models.length > 8 && source.families.length > 1;
  const pick = choices("One line per", ["models", "families"], families ? "families" : "models", (one) => {
    families = one === "families";
    pick.show(one);
    draw();
  });
  const shown = panel(
    "depths",
    "By depth",
    "The layers of every model from first to last, divided into fifths: medians of both scores, and their correlation over the heads of each fifth. The line of a family is the median of its models.",
    {
      csv: () => csvFile(`${source.name}-depth`, rows()),
      tools: source.families.length > 1 ? [pick.element] : [],
    },
  );
  const parts = CHARTS.map(([name, title, domain]) => {
    const svg = canvas(`${title} by depth`, { name: `depth-${name}` });
    const body = h("div", { class: "body" }, svg.node());
    return { name, title, domain, svg, body };
  });
  const legend = h("div", { class: "models" });
  shown.body.append(h("div", { class: "charts" }, ...parts.map((part) => part.body)), legend);

  const drawn = () => (families ? source.families : source.models);
  const nameOf = (one) => one.model ?? one.family;
  const rows = () =>
    drawn().flatMap((one) =>
      FIFTHS.map((_, fifth) => ({
        [families ? "family" : "model"]: nameOf(one),
        fifth: fifth + 1,
        ...Object.fromEntries(CHARTS.map(([name]) => [name, one.depth[name][fifth]])),
      })),
    );

  function draw() {
    legend.replaceChildren(...drawn().map((one, at) => h("span", { class: "family" }, markOf(at), nameOf(one))));
    for (const { name, title, domain, svg, body } of parts) {
      const { group, width, height } = frame(svg, widthOf(body), 250, MARGIN);
      const x = scaleLinear([0, FIFTHS.length - 1], [10, width - 10]);
      const y = scaleLinear(domain, [height, 0]);
      axes(group, x, y, width, height, {
        across: "depth, first to last layer",
        up: title,
        ticks: FIFTHS.length,
        format: (value) => (Number.isInteger(value) ? `${value + 1}/5` : ""),
      });
      const points = (one) => one.depth[name].map((value, at) => [x(at), value === null ? NaN : y(value)]);
      const trace = line().defined((d) => Number.isFinite(d[1]));
      const all = drawn().map((one, at) => ({ one, at, points: points(one) }));
      layer(group, "traces")
        .selectAll("path")
        .data(all)
        .join("path")
        .attr("class", "line")
        .style("stroke", (d) => colourOf(d.at))
        .attr("d", (d) => trace(d.points));
      layer(group, "points")
        .selectAll("path")
        .data(all)
        .join("path")
        .attr("fill", (d) => colourOf(d.at))
        .attr("d", (d) => d.points.map(([px, py]) => (Number.isNaN(py) ? "" : shapeOf(d.at)(px, py, 3.2))).join(""));
      answer(svg, group, all, x, name);
    }
    mark();
  }

  function answer(svg, group, all, x, name) {
    const under = (event) => {
      const [px, py] = placeOf(event, svg, MARGIN);
      const fifth = Math.min(FIFTHS.length - 1, Math.max(0, Math.round(x.invert(px))));
      const gaps = all.map((d) => (Number.isNaN(d.points[fifth][1]) ? Infinity : Math.abs(d.points[fifth][1] - py)));
      const best = gaps.indexOf(Math.min(...gaps));
      return gaps[best] < 24 ? { fifth, ...all[best] } : null;
    };
    svg.on("pointermove", (event) => {
      const found = under(event);
      light(found && !families ? nameOf(found.one) : null);
      if (!found) return tip(null);
      const value = (which) => number(found.one.depth[which][found.fifth]);
      tip(
        [
          `${nameOf(found.one)}, ${FIFTHS[found.fifth]} of its layers`,
          `positional ${value("positional")} · symbolic ${value("symbolic")} · r ${value("r")}`,
        ],
        event.clientX,
        event.clientY,
      );
    });
    svg.on("pointerleave", () => (light(null), tip(null)));
    svg.on("click", (event) => {
      const found = under(event);
      if (found && !families) chooseModel(source, found.at);
    });
  }

  function mark() {
    const model = source.highlighted();
    const one =
      model === undefined ? undefined : families ? source.familyNumbers.get(source.models[model].family) : model;
    for (const { svg } of parts)
      for (const name of ["traces", "points"])
        layer(layer(svg, "frame"), name)
          .classed("faint", one !== undefined)
          .selectAll("path")
          .classed("stands", (d) => d.at === one);
  }
  return { ...shown, draw, mark, light: () => parts[0].svg.attr("width") && mark() };
}

const FACTS = [
  ["model", (one) => one.model],
  ["family", (one) => one.family],
  ["type", (one) => one.model_type],
  ["parameters", (one) => count(one.parameters)],
  ["layers", (one) => one.layers],
  ["heads per layer (key heads)", (one) => `${one.heads_per_layer} (${one.kv_heads})`],
  ["head size", (one) => one.head_size ?? "–"],
  ["RoPE base", (one) => (one.rope_base === null ? "–" : count(one.rope_base))],
  ["prompts", (one) => `${one.prompts} of ${count(one.tokens)} tokens`],
  ["right answers", (one) => (one.right === null ? "–" : `${one.right} of ${one.prompts}`)],
  ["self-check", (one) => one.deviation.toExponential(0)],
  ["licence", (one) => one.licence],
];

/** The table of models: sizes, prompts, licences. */
export function facts(source) {
  const shown = panel("models", "The models", "Sizes, prompts, right answers, and declared licences.", {
    csv: () => csvFile(`${source.name}-facts`, modelRows(source)),
  });
  const line = (one) =>
    h("tr", {}, ...FACTS.map(([, value], at) => h(at ? "td" : "th", at ? {} : { scope: "row" }, String(value(one)))));
  const body = h("tbody", {}, ...source.models.map(line));
  shown.body.append(
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "The models" },
      h("table", {}, h("thead", {}, h("tr", {}, ...FACTS.map(([name]) => h("th", { scope: "col" }, name)))), body),
    ),
  );
  const mark = () =>
    [...body.children].forEach((row, at) =>
      source.models[at].model === store.state.model
        ? row.setAttribute("aria-current", "true")
        : row.removeAttribute("aria-current"),
    );
  return { ...shown, draw: mark, mark, light() {} };
}
