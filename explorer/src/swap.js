// Attention on the blocks before and after two of them are swapped: it stays in place or follows the content.

import { max } from "d3-array";
import { frame, layer, paneOver, placeOf, texts, widthOf } from "./chart.js";
import { figurePanel } from "./figure.js";
import { swapped } from "./source.js";
import { change, store } from "./store.js";
import { h, number, percent, tip } from "./ui.js";
import { isPart } from "./words.js";

const JUDGED = 0.001; // of the attention, on both blocks together
const MARGIN = { left: 46, top: 16, right: 8, bottom: 16 };

export function swap(source) {
  const picks = [0, 1].map((end) =>
    h(
      "select",
      {
        "aria-label": end ? "Second block" : "First block",
        onchange: (event) => pick(end, Number(event.target.value)),
      },
      ...source.table.map((row, at) => h("option", { value: at }, title(row))),
    ),
  );
  const verdict = h("p", { class: "verdict", "aria-live": "polite" });
  const { svg, shown } = figurePanel("swap", "Before and after a swap", "", {
    inner: true,
    file: () => `${source.name}-${source.labels[head] ?? ""}-swap`,
    csv: () => rows(),
  });
  shown.body.prepend(h("div", { class: "picks" }, "swap ", picks[0], " with ", picks[1]));
  shown.body.append(verdict);
  let head, made, i, j;

  const rows = () =>
    source.table.map((row, at) => ({
      first_block: row.first + 1,
      last_block: row.last + 1,
      says: row.label,
      before: made.before[at],
      after: made.after[at],
    }));

  /** Choose a row of the table: the state has the number of its first block. */
  function pick(end, row) {
    if (!made) return; // nothing is drawn yet
    const pair = [i, j];
    if (pair[1 - end] === row) pair[1 - end] = pair[end];
    pair[end] = row;
    change({ swap: pair.map((one) => source.table[one].first) });
  }

  async function draw(at) {
    head = at;
    const whole = isPart(source, store.state) ? "Of the whole head: attention" : "Attention";
    shown.rehint(
      `${whole} on the blocks of the first prompt. Swap two blocks: does the tall bar stay in place or follow its content?`,
    );
    shown.element.classList.toggle("empty", at === undefined);
    if (at === undefined) {
      svg.attr("aria-label", "No head is selected").selectAll("*").remove();
      verdict.textContent = "Select a head to see its attention before and after a swap.";
      return;
    }
    const table = await source.placement(at);
    if (head !== at || table.size !== source.table.length) return; // another head or prompt was chosen meanwhile
    [i, j] = chosenPair(source, table);
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
      [-8, half - 4, "end", "before"],
      [-8, height - 4, "end", "after"],
      [-8, 6, "end", percent(top)],
    ];
    texts(layer(group, "sides"), sides);
    const pane = paneOver(group, width, height);
    const under = (event) =>
      Math.min(made.before.length - 1, Math.max(0, Math.floor(placeOf(event, svg, MARGIN)[0] / thick)));
    pane.on("pointermove", (event) => {
      const block = under(event);
      tip(
        [
          title(source.table[block]),
          `before ${percent(made.before[block])} · after ${percent(made.after[block])}`,
          "click: swap this block; shift-click: swap with this block",
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
    const most = Math.max(made.before[i] + made.before[j], made.after[i] + made.after[j]);
    const [colour, text] = !(most >= JUDGED)
      ? ["", `Too little attention to judge (less than ${percent(JUDGED)} on these two)`]
      : gap > 0.1
        ? ["where", "Attention stays in place (where)"]
        : gap < -0.1
          ? ["what", "Attention follows the content (what)"]
          : ["", "Neither clearly"];
    const merged =
      source.table.length < source.blocks ? " Neighbouring blocks are merged; each bar is the mean per block." : "";
    return [
      h("b", { class: colour }, text),
      `: position ${source.table[i].first + 1} goes from ${percent(made.before[i])} to ${percent(made.after[i])}, position ${source.table[j].first + 1} from ${percent(made.before[j])} to ${percent(made.after[j])}. This swap: positional ${number(made.stays)}, symbolic ${number(made.follows)}.${merged}`,
    ];
  }
  return { ...shown, draw };
}

/** The row of a block in the table of swaps, where neighbouring blocks may be merged. */
export const rowOf = (source, block) => source.table.findIndex(({ first, last }) => first <= block && block <= last);

/** The two rows to swap: those of the blocks that were chosen, else the ones with the most and the least attention. */
export function chosenPair(source, table) {
  const asked = store.state.swap?.map((block) => rowOf(source, block));
  if (asked && asked.every((row) => row >= 0) && asked[0] !== asked[1]) return asked;
  const now = Array.from({ length: table.size }, (_, block) => table.mass(block, block));
  const [i, j] = [now.indexOf(Math.max(...now)), now.indexOf(Math.min(...now))];
  return [i, i === j ? (i + 1) % table.size : j];
}

const title = (row) =>
  `${row.first + 1}${row.last > row.first ? `–${row.last + 1}` : ""}${row.label ? ` · ${row.label}` : ""}`;
