// How focused a head is, and which frequencies it uses, over training.

import { extent, max } from "d3-array";
import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { axes, canvas, frame, layer, paths, unit, widthOf } from "./chart.js";
import { along, cursor, MARGIN, named, rows, thousands } from "./over.js";
import { count, csvFile, panel, svgFile } from "./ui.js";

export function focusLines(source) {
  const svg = canvas("Entropy of attention and mean frequency over training", { name: "focus" });
  let head;
  const highest = max(source.array("mean_frequency")) || 1;
  const shown = panel(
    "focus",
    "Focus and frequency",
    `The entropy of its attention, and the mean ID of the frequencies that it uses, as a share of ${count(highest)}, the largest that any head reaches.`,
    {
      inner: true,
      csv: () => csvFile(`${source.name}-${named(source, head)}-focus`, rows(source, head)),
      svg: () => svgFile(`${source.name}-${named(source, head)}-focus`, svg.node()),
    },
  );
  shown.body.append(svg.node());
  const ids = source.steps;

  function draw(at) {
    head = at;
    const { group, width, height } = frame(svg, widthOf(shown.body), 292, MARGIN);
    const [x, y] = [scaleLinear(extent(ids), [0, width]), unit(height, 0)];
    axes(group, x, y, width, height, {
      across: "step of training",
      up: "entropy, share of the largest ID",
      ticks: width / 60,
      format: thousands,
    });
    cursor(group, source, x, height);
    const drawn = [
      ["entropy", along(source, "entropy", at)],
      ["frequency", along(source, "mean_frequency", at).map((value) => value / highest)],
    ];
    const trace = line().defined((d) => !Number.isNaN(d[1]));
    paths(group, "line", drawn, ([, values]) => trace(values.map((value, n) => [x(ids[n]), y(value)])));
    const words = [
      [0, "solid: entropy"],
      [104, `dashed: mean frequency ID, of ${count(highest)}`],
    ];
    layer(group, "legend")
      .attr("transform", "translate(0,-12)")
      .selectAll("text")
      .data(words)
      .join("text")
      .attr("class", "small")
      .attr("x", (d) => d[0])
      .text((d) => d[1]);
  }
  return { ...shown, draw };
}
