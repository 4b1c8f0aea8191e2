// How focused a head is and which frequencies it uses, over training.

import { extent, max } from "d3-array";
import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { axes, frame, layer, paths, texts, unit, widthOf } from "./chart.js";
import { along, cursor, headFigure, MARGIN, thousands } from "./lines.js";
import { count } from "./ui.js";

export function focusLines(source) {
  let head;
  const highest = max(source.array("mean_frequency")) || 1;
  const hint = `Entropy of the attention, and mean ID of the frequencies used, as a fraction of ${count(highest)}, the largest of any head.`;
  const { svg, shown } = headFigure(source, "focus", "Focus and frequency", hint, () => head);
  svg.attr("aria-label", "Entropy of attention and mean frequency over training");
  const ids = source.steps;

  function draw(at) {
    head = at;
    const { group, width, height } = frame(svg, widthOf(shown.body), 292, MARGIN);
    const [x, y] = [scaleLinear(extent(ids), [0, width]), unit(height, 0)];
    axes(group, x, y, width, height, {
      across: "step of training",
      up: "entropy; fraction of the largest ID",
      ticks: width / 60,
      format: thousands,
    });
    cursor(group, source, x, height);
    const drawn = [
      ["entropy", along(source, "entropy", at)],
      ["frequency", along(source, "mean_frequency", at).map((value) => value / highest)],
    ];
    const trace = line().defined((d) => Number.isFinite(d[1]));
    paths(group, "line", drawn, ([, values]) => trace(values.map((value, n) => [x(ids[n]), y(value)])));
    texts(layer(group, "legend").attr("transform", "translate(0,-12)"), [
      [0, 0, "start", "solid: entropy"],
      [104, 0, "start", `dashed: mean frequency ID, of ${count(highest)}`],
    ]);
  }
  return { ...shown, draw };
}
