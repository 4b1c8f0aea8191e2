// All heads as a table: search, sort, filter by kind or role, copy as a list.

import { ascending, descending } from "d3-array";
import { change, choose, selectedIn, store } from "./store.js";
import { announce, copyText, csvFile, h, number, panel, percent } from "./ui.js";
import { headRows, isPart, rolesOf } from "./words.js";

const MOST = 400; // rows
const TOP = 10; // heads that one click selects
const SHARES = [
  ["on blocks", "on_blocks", "Attention on all blocks together"],
  ["on the answer", "answer", "Attention on the block that holds the answer"],
  ["chance", "answer_chance", "Attention on the answer if that on the blocks were spread evenly over them"],
  ["on first token", "on_first", "Attention on the first token"],
];

export function headTable(source) {
  const shares = SHARES.filter(([, name]) => source.has(name) && source.array(name).some((share) => !Number.isNaN(share)));
  const columns = [
    { title: "head", text: (at) => source.labels[at], value: (at) => at, up: true },
    { title: "kind", text: (at) => h("b", { class: kinds[at] }, kinds[at]), value: (at) => kinds[at], up: true },
    ...["positional", "symbolic", "entropy"].map((name) => ({
      title: name,
      text: (at) => number(source.values(name, store.state)[at]),
      value: (at) => source.values(name, store.state)[at],
    })),
    ...shares.map(([title, name, why]) => ({
      ...{ title, why },
      text: (at) => percent(source.array(name)[at]),
      value: (at) => source.array(name)[at],
    })),
    { title: "role", text: (at) => rolesOf(source, at).join(", "), value: (at) => rolesOf(source, at).join(", "), up: true },
  ];
  let kinds = [];
  let sorted = { column: columns[0], up: true };
  let listed = [];
  let lines = new Map();

  const search = h("input", { type: "search", placeholder: "search: 16. or induction", "aria-label": "Search heads", oninput: list });
  const groups = ["where", "what", "unfocused", "mixed", ...Object.keys(source.roles)];
  const filter = h(
    "select",
    { "aria-label": "Kind or role", onchange: list },
    h("option", { value: "" }, "all heads"),
    ...groups.map((name) => h("option", { value: name }, name)),
  );
  const button = (text, act) => h("button", { type: "button", onclick: act }, text);
  const most = button(`${TOP} most retrieving`, () => {
    sortBy(columns.find(({ title }) => title === "on the answer"), false);
    select(ranked("answer").slice(0, TOP));
  });
  const copy = button("copy as list", () => copyText(listed.map((at) => source.labels[at]).join(", "), copy));
  const all = button("select these", () => select(listed));
  const found = h("p", { class: "hint found", "aria-live": "polite" });
  const heading = columns.map((column) => {
    const sort = h("button", { type: "button", class: "quiet", "data-tip": column.why ?? null }, column.title);
    sort.addEventListener("click", () => sortBy(column, column === sorted.column ? !sorted.up : Boolean(column.up)));
    return h("th", { scope: "col" }, sort);
  });
  const body = h("tbody");
  const scroll = h("div", { class: "scroll heads-table", tabindex: 0, role: "region", "aria-label": "Table of heads" });
  scroll.append(h("table", {}, h("thead", {}, h("tr", {}, ...heading)), body));
  const shown = panel("heads", "Find heads", hint(), {
    csv: () => csvFile(`${source.name}-heads`, headRows(source, store.state, listed)),
  });
  const tools = [search, filter, ...(shares.some(([, name]) => name === "answer") ? [most] : []), all, copy];
  shown.body.append(h("div", { class: "picks" }, ...tools), found, scroll);

  function hint() {
    const { role, little } = source.criteria;
    const text = `Click a column to sort, a row to select the head. A role needs ${percent(role)} of a head's attention: on the first token (sink), or, on repeated random tokens, on the token before, on the token itself or on what followed it last time (induction). Retrieving: more attention on the block with the answer than chance, over the whole interval.`;
    return source.roles["rests on little"] ? `${text} Rests on little: less than ${percent(little)} of its attention is on the blocks.` : text;
  }

  const ranked = (name) =>
    source.labels
      .map((_, at) => at)
      .filter((at) => !Number.isNaN(source.array(name)[at]))
      .sort((a, b) => descending(source.array(name)[a], source.array(name)[b]));

  function select(places) {
    change({ heads: places.map((at) => source.labels[at]).reverse(), swap: null }); // the first one is shown in detail
    announce(`${places.length} heads selected`);
  }

  function sortBy(column, up) {
    sorted = { column, up };
    list();
  }

  /** The heads that match, in order. */
  function list() {
    const words = search.value.trim().toLowerCase();
    const matches = (at) =>
      (!filter.value || kinds[at] === filter.value || rolesOf(source, at).includes(filter.value)) &&
      (!words || source.labels[at].startsWith(words) || [kinds[at], ...rolesOf(source, at)].some((one) => one.includes(words)));
    const { column, up } = sorted;
    const order = up ? ascending : descending;
    listed = source.labels.map((_, at) => at).filter(matches);
    const unknown = (at) => Number.isNaN(column.value(at)); // come last in either order
    listed.sort((a, b) => unknown(a) - unknown(b) || order(column.value(a), column.value(b)) || a - b);
    columns.forEach((one, at) =>
      heading[at].setAttribute("aria-sort", one === column ? (up ? "ascending" : "descending") : "none"),
    );
    lines = new Map(listed.slice(0, MOST).map((at) => [source.labels[at], line(at)]));
    body.replaceChildren(...lines.values());
    const more = listed.length > MOST ? `, the first ${MOST} listed` : "";
    found.textContent = `${listed.length} of ${source.count} heads${more}`;
    mark();
  }

  function line(at) {
    const name = source.labels[at];
    const pick = h("button", { type: "button", class: "quiet", "aria-label": `Head ${name}` }, name);
    const cells = columns.map(({ text }, nth) => h("td", {}, nth ? text(at) : pick));
    return h("tr", { onclick: (event) => choose(name, event.shiftKey) }, ...cells);
  }

  function mark() {
    for (const row of body.querySelectorAll("[aria-current]")) row.removeAttribute("aria-current");
    for (const at of selectedIn(source)) lines.get(source.labels[at])?.setAttribute("aria-current", "true");
  }

  function draw() {
    kinds = source.kinds(store.state);
    shown.retitle(isPart(source, store.state) ? `Find heads, at frequency ${store.state.frequency}` : "Find heads");
    list();
  }
  return { ...shown, draw, mark, light() {} };
}
