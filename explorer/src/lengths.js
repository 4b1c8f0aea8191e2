// Right answers by length and number of hops, beside published values.

import { extent } from "d3-array";
import { scaleLog } from "d3-scale";
import { area, line } from "d3-shape";
import {
  axes, circle, colours, cross, diamond, frame, layer, placeOf, square, texts, triangle, unit, widthOf,
} from "./chart.js";
import { figurePanel } from "./figure.js";
import { announce, choices, count, number, percent, tip } from "./ui.js";

export const MARGIN = { left: 46, top: 30, right: 16, bottom: 42 };
const MARKS = [circle, square, diamond, triangle];

/** Tokens on a logarithmic axis, labelled at round numbers. */
export const tokens = (source, width) => scaleLog(extent(source.lengths), [0, width]);
export const round = (value) => (/^[125]0*$/.test(String(value)) ? count(value) : "");

const hopsOf = (hops) => (hops ? `${hops} ${hops === 1 ? "hop" : "hops"}` : "all");

export function accuracy(source) {
  const { lengths, hops } = source;
  let chosen = 0; // the line whose interval is drawn
  let now = null; // the length under the cursor
  let x;
  const names = hops.map(hopsOf);
  const pick = choices("Interval drawn", names, names[0], (one) => {
    chosen = names.indexOf(one);
    pick.show(one);
    draw();
  });
  const { svg, shown } = figurePanel("lengths", "Right answers by length", hint(source), {
    label: "Right answers by length in tokens and number of hops. Arrow keys move through lengths.",
    interactive: true,
    file: `${source.name}-accuracy`,
    csv: () => rows(),
    tools: [pick.element],
  });

  const at = (name, length, hop) => source.array(name)[length * hops.length + hop];
  const published = new Map(source.published);
  const rows = () =>
    lengths.flatMap((length, n) =>
      hops.map((one, hop) => ({
        length,
        hops: one || "all",
        ...Object.fromEntries(["accuracy", "accuracy_low", "accuracy_high"].map((name) => [name, at(name, n, hop)])),
        published: one ? "" : (published.get(length) ?? ""),
      })),
    );

  function draw() {
    const { group, width, height } = frame(svg, widthOf(shown.body), 330, MARGIN);
    x = tokens(source, width);
    const y = unit(height, 0);
    axes(group, x, y, width, height, { across: "tokens", up: "right answers", format: round });
    const shade = (hop) => (hops[hop] ? colours().layer(hops[hop] / Math.max(...hops)) : colours().ink);
    const band = area(
      (_, n) => x(lengths[n]),
      (_, n) => y(at("accuracy_low", n, chosen)),
      (_, n) => y(at("accuracy_high", n, chosen)),
    );
    layer(group, "reach").selectAll("path").data([lengths]).join("path").attr("d", band).attr("fill", shade(chosen));
    const trace = (hop) => lengths.map((length, n) => [x(length), y(at("accuracy", n, hop))]);
    layer(group, "hops")
      .selectAll("path")
      .data(hops.map((_, hop) => hop))
      .join("path")
      .attr("class", (hop) => (hop === chosen ? "line chosen" : "line"))
      .style("stroke", shade)
      .attr("d", (hop) => line()(trace(hop)));
    layer(group, "points")
      .selectAll("path")
      .data(hops.flatMap((one, hop) => (one ? [hop] : [])))
      .join("path")
      .attr("fill", shade)
      .attr("d", (hop) =>
        trace(hop)
          .map(([px, py]) => MARKS[hops[hop] % MARKS.length](px, py, 2.7))
          .join(""),
      );
    layer(group, "published")
      .selectAll("path")
      .data([source.published])
      .join("path")
      .attr("d", (all) => all.map(([length, share]) => cross(x(length), y(share), 3.5)).join(""));
    legend(layer(group, "legend").attr("transform", "translate(0,-16)"), shade);
    cursor(group, height);
  }

  function legend(group, shade) {
    const items = hops.map((one, hop) => ({ hop, text: names[hop], mark: one ? MARKS[one % MARKS.length] : null }));
    let left = 4;
    const places = items.map((item) => {
      const here = { ...item, x: left };
      left += 30 + 6.5 * item.text.length;
      return here;
    });
    group
      .selectAll("path.mark")
      .data(places)
      .join("path")
      .attr("class", "mark")
      .attr("fill", (d) => shade(d.hop))
      .attr("d", (d) => (d.mark ? d.mark(d.x, -4, 3.4) : `M${d.x - 5},-5h12v2.4h-12z`));
    group
      .selectAll("path.cross")
      .data(source.published.length ? [left] : [])
      .join("path")
      .attr("class", "cross")
      .attr("d", (d) => cross(d, -4, 3.4));
    const words = places.map((d) => [d.x + 10, 0, "start", d.text]);
    texts(group, source.published.length ? [...words, [left + 10, 0, "start", "published, all"]] : words);
  }

  function cursor(group, height) {
    layer(group, "cursor")
      .selectAll("line")
      .data(now === null ? [] : [x(lengths[now])])
      .join("line")
      .attr("x1", (d) => d)
      .attr("x2", (d) => d)
      .attr("y2", height ?? 330 - MARGIN.top - MARGIN.bottom);
  }

  function lines(n) {
    const range = (hop) => `${number(at("accuracy_low", n, hop))} to ${number(at("accuracy_high", n, hop))}`;
    const each = hops.map((_, hop) => `${names[hop]} ${percent(at("accuracy", n, hop))} (${range(hop)})`);
    const known = published.has(lengths[n]) ? [`published ${percent(published.get(lengths[n]))}`] : [];
    return [`${count(lengths[n])} tokens`, ...each, ...known];
  }

  function look(n) {
    now = n;
    cursor(layer(svg, "frame"));
  }

  svg.on("pointermove", (event) => {
    const length = x.invert(placeOf(event, svg, MARGIN)[0]);
    look(lengths.reduce((best, one, n) => (gap(one, length) < gap(lengths[best], length) ? n : best), 0));
    tip(lines(now), event.clientX, event.clientY);
  });
  svg.on("pointerleave", () => (look(null), tip(null)));
  svg.on("blur", () => look(null));
  svg.on("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.metaKey || event.ctrlKey || event.altKey) return;
    event.preventDefault();
    look(now === null ? 0 : Math.min(lengths.length - 1, Math.max(0, now + step)));
    announce(lines(now).join(", "));
  });
  return { ...shown, draw, mark() {}, light() {} };
}

const gap = (one, other) => Math.abs(Math.log(one / other));

const hint = (source) =>
  `The same ${count(source.asked)} sequences at every length, with more symbols added on the left. Shaded: 95 % Wilson interval of the line in bold.${source.published.length ? " Crosses: published values, for all numbers of hops." : ""}`;
