// Training as a film: play, a slider over the steps, accuracy by hops.

import { line } from "d3-shape";
import { canvas, frame, layer, unit } from "./chart.js";
import { change, store } from "./store.js";
import { count, csvFile, download, h, number } from "./ui.js";

const BEAT = 110; // milliseconds per checkpoint

export function film(sources) {
  const steps = [...new Set(sources.flatMap((source) => source.steps))].sort((a, b) => a - b);
  const here = () =>
    store.state.step === null
      ? steps.length - 1
      : Math.max(
          0,
          steps.findLastIndex((step) => step <= store.state.step),
        );
  const play = h("button", { type: "button", class: "play", onclick: () => (timer ? stop() : start()) });
  const slider = h("input", {
    type: "range",
    min: 0,
    max: steps.length - 1,
    step: 1,
    "aria-label": "Step of training",
    oninput: () => (stop(), change({ step: steps[Number(slider.value)] })),
  });
  const label = h("output", { class: "step" });
  const sparks = sources.filter((source) => source.hops.length).map(sparklines);
  const element = h(
    "section",
    { class: "film", "aria-label": "Training as a film" },
    h("div", { class: "reel" }, play, slider, label),
    ...sparks.map((spark) => spark.element),
  );
  let timer = null;

  function start() {
    if (here() === steps.length - 1) change({ step: steps[0] });
    timer = setInterval(() => {
      const next = here() + 1;
      change({ step: steps[next] });
      if (next >= steps.length - 1) stop();
    }, BEAT);
    show();
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    show();
  }
  function show() {
    play.textContent = timer ? "❚❚" : "▶";
    play.setAttribute("aria-label", timer ? "Pause" : "Play the training");
  }
  function draw() {
    const at = here();
    slider.value = at;
    slider.setAttribute("aria-valuetext", `step ${steps[at]}`);
    label.textContent = `step ${count(steps[at])} of ${count(steps.at(-1))}`;
    for (const spark of sparks) spark.draw();
  }
  show();
  return { element, draw, stop };
}

function sparklines(source) {
  const hops = source.hops;
  const shares = source.array("accuracy");
  const parts = hops.map((number_of) => {
    const svg = canvas(`Accuracy of ${number_of} hops over training`, { name: `hop-${number_of}` });
    const value = h("b", {});
    return {
      svg,
      value,
      element: h(
        "div",
        { class: "spark" },
        h("span", {}, `${number_of} ${number_of === 1 ? "hop" : "hops"} `, value),
        svg.node(),
      ),
    };
  });
  const rows = () =>
    source.steps.flatMap((step, at) =>
      hops.map((one, n) => ({ step, hops: one, accuracy: shares[at * hops.length + n] })),
    );
  const save = h(
    "button",
    {
      type: "button",
      class: "quiet",
      "aria-label": "Download accuracy as CSV",
      onclick: () => download(csvFile(`${source.name}-accuracy`, rows())),
    },
    "CSV",
  );
  const element = h(
    "div",
    { class: "sparks" },
    h("span", { class: "name" }, `${source.name}: right answers`),
    ...parts.map((part) => part.element),
    save,
  );

  function draw() {
    const now = source.at(store.state);
    parts.forEach(({ svg, value }, n) => {
      const { group, width, height } = frame(svg, 150, 34, { left: 1, right: 1, top: 3, bottom: 3 });
      const [x, y] = [unit(0, width), unit(height, 0)];
      const last = Math.max(1, source.steps.length - 1);
      const places = source.steps.map((_, at) => [x(at / last), y(shares[at * hops.length + n])]);
      layer(group, "ahead").selectAll("path").data([places]).join("path").attr("d", line());
      layer(group, "so-far")
        .selectAll("path")
        .data([places.slice(0, now + 1)])
        .join("path")
        .attr("d", line());
      layer(group, "now")
        .selectAll("circle")
        .data([places[now]])
        .join("circle")
        .attr("cx", (d) => d[0])
        .attr("cy", (d) => d[1])
        .attr("r", 3);
      value.textContent = `${number(100 * shares[now * hops.length + n], 0)} %`;
    });
  }
  return { element, draw };
}
