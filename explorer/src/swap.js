// Attention on the blocks before and after two of them change places: mass stays, or follows.

import { max } from "d3-array";
import { canvas, frame, layer, paneOver, placeOf, widthOf } from "./chart.js";
import { swapped } from "./source.js";
import { change, store } from "./store.js";
import { capital, csvFile, h, number, panel, percent, svgFile, tip } from "./ui.js";
import { isPart } from "./words.js";

const MARGIN = { left: 46, top: 16, right: 8, bottom: 16 };

export function swap(source) {
  const svg = canvas("", { name: "swap" });
  const picks = [0, 1].map((end) =>
    h(
      "select",
      {
        "aria-label": end ? "The other block" : "One block",
        onchange: (event) => pick(end, Number(event.target.value)),
      },
      ...source.table.map((row, at) => h("option", { value: at }, title(row))),
    ),
  );
  const verdict = h("p", { class: "verdict", "aria-live": "polite" });
  const shown = panel("swap", "Before and after a swap", "", {
    inner: true,
    csv: () => csvFile(`${source.name}-${source.labels[head] ?? ""}-swap`, rows()),
    svg: () => svgFile(`${source.name}-${source.labels[head] ?? ""}-swap`, svg.node()),
  });
  shown.body.append(h("div", { class: "picks" }, "swap ", picks[0], " with ", picks[1]), svg.node(), verdict);
  let head, made, i, j;

  const rows = () =>
    source.table.map((row, at) => ({
      first_block: row.first + 1,
      last_block: row.last + 1,
      says: row.label,
      before: made.before[at],
      after: made.after[at],
    }));

  function pick(end, block) {
    const pair = [i, j];
    if (pair[1 - end] === block) pair[1 - end] = pair[end];
    pair[end] = block;
    change({ swap: pair });
  }

  function draw(at) {
    head = at;
    const whole = isPart(source, store.state) ? "Of the whole head: attention" : "Attention";
    shown.rehint(
      `${whole} on the blocks of the first prompt. Exchange two: does the tall bar stay, or follow what was moved?`,
    );
    shown.element.classList.toggle("empty", at === undefined);
    if (at === undefined) {
      svg.attr("aria-label", "No head is chosen").selectAll("*").remove();
      verdict.textContent = "Choose a head to see where its attention goes.";
      return;
    }
    const table = source.placement(at);
    const now = Array.from({ length: table.size }, (_, block) => table.mass(block, block));
    const asked = store.state.swap;
    [i, j] =
      asked && asked.every((block) => block >= 0 && block < table.size) && asked[0] !== asked[1]
        ? asked
        : [now.indexOf(Math.max(...now)), now.indexOf(Math.min(...now))];
    if (i === j) j = (i + 1) % table.size;
    made = swapped(table, i, j);
    picks.forEach((select, end) => select.selectedIndex === [i, j][end] || (select.selectedIndex = [i, j][end]));
    figure(at);
    verdict.replaceChildren(...words());
  }

  function figure(at) {
    const { group, width, height } = frame(svg, widthOf(shown.body), 226, MARGIN);
    svg.attr(
      "aria-label",
      `Attention of head ${source.labels[at]} on ${made.before.length} blocks, before and after swapping ${title(source.table[i])} and ${title(source.table[j])}`,
    );
    const top = Math.max(max(made.before), max(made.after), 1e-12);
    const half = height / 2 - 9;
    const thick = width / made.before.length;
    const bars = [
      ["before", made.before, half],
      ["after", made.after, height],
    ].flatMap(([when, values, base]) =>
      values.map((value, block) => ({
        when,
        block,
        value,
        x: block * thick,
        y: base - (half * value) / top,
        height: (half * value) / top,
      })),
    );
    const content = (d) => (d.when === "before" ? d.block : d.block === i ? j : d.block === j ? i : d.block);
    layer(group, "bases")
      .selectAll("line")
      .data([half, height])
      .join("line")
      .attr("x2", width)
      .attr("y1", (d) => d + 0.5)
      .attr("y2", (d) => d + 0.5);
    layer(group, "bands")
      .selectAll("rect")
      .data([i, j])
      .join("rect")
      .attr("x", (d) => d * thick - 0.5)
      .attr("width", thick + 0.5)
      .attr("height", height);
    layer(group, "bars")
      .selectAll("rect")
      .data(bars)
      .join("rect")
      .attr("x", (d) => d.x)
      .attr("width", Math.max(0.8, thick - 1))
      .attr("y", (d) => d.y)
      .attr("height", (d) => d.height)
      .attr("class", (d) => (content(d) === i ? "one" : content(d) === j ? "other" : "rest"));
    const tags = bars
      .filter((d) => content(d) === i || content(d) === j)
      .map((d) => ({ ...d, text: content(d) === i ? "A" : "B" }));
    layer(group, "tags")
      .selectAll("text")
      .data(tags)
      .join("text")
      .attr("x", (d) => d.x + thick / 2)
      .attr("y", (d) => d.y - 4)
      .text((d) => d.text);
    const sides = [
      ["before", -8, half - 4],
      ["after", -8, height - 4],
      [percent(top), -8, 6],
    ];
    layer(group, "sides")
      .selectAll("text")
      .data(sides)
      .join("text")
      .attr("class", "small")
      .attr("x", (d) => d[1])
      .attr("y", (d) => d[2])
      .attr("text-anchor", "end")
      .text((d) => d[0]);
    const pane = paneOver(group, width, height);
    const under = (event) =>
      Math.min(made.before.length - 1, Math.max(0, Math.floor(placeOf(event, svg, MARGIN)[0] / thick)));
    pane.on("pointermove", (event) => {
      const block = under(event);
      tip(
        [
          title(source.table[block]),
          `before ${percent(made.before[block])} · after ${percent(made.after[block])}`,
          "click: swap this one; with shift: with this one",
        ],
        event.clientX,
        event.clientY,
      );
    });
    pane.on("pointerleave", () => tip(null));
    pane.on("click", (event) => pick(event.shiftKey ? 1 : 0, under(event)));
  }

  function words() {
    const gap = made.stays - made.follows;
    const [colour, what] = Number.isNaN(gap)
      ? ["", "there is no attention to move"]
      : gap > 0.1
        ? ["where", "attention stays where it was"]
        : gap < -0.1
          ? ["what", "attention follows what was moved"]
          : ["", "one cannot tell which"];
    const merged =
      source.table.length < source.blocks ? " Blocks are neighbours merged; a bar is the mean of one of them." : "";
    return [
      h("b", { class: colour }, capital(what)),
      `: place ${source.table[i].first + 1} had ${percent(made.before[i])} and has ${percent(made.after[i])}, place ${source.table[j].first + 1} had ${percent(made.before[j])} and has ${percent(made.after[j])}. This swap: positional ${number(made.stays)}, symbolic ${number(made.follows)}.${merged}`,
    ];
  }
  return { ...shown, draw };
}

const title = (row) =>
  `${row.first + 1}${row.last > row.first ? `–${row.last + 1}` : ""}${row.label ? ` · ${row.label}` : ""}`;
