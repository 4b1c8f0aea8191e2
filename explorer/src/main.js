// The page: a header written from the data, one or two columns of linked views, keys, the address.

import { Atlas } from "./atlas.js";
import { attentionByLength, losses } from "./attention-by-length.js";
import { byDepth, byFamily, facts } from "./atlas-families.js";
import { overlay, sideBySide } from "./atlas-plane.js";
import { forgetColours, isDark, measure } from "./chart.js";
import { depth } from "./depth.js";
import { film } from "./film.js";
import { grid } from "./grid.js";
import { head } from "./head.js";
import { headTable } from "./head-table.js";
import { frequencyHeat, stepHeat } from "./heat.js";
import { accuracy } from "./lengths.js";
import { plane } from "./plane.js";
import { provenance } from "./provenance.js";
import { rotationPlan } from "./rotations.js";
import { Source } from "./source.js";
import { story } from "./story.js";
import { change, onChange, onLight, readHash, store } from "./store.js";
import { EmbeddedAttention } from "./token-attention.js";
import { announce, capital, explainTerms, h, marked, tip } from "./ui.js";
import { isPart } from "./words.js";

let data = { comparisons: {} };
let sources = [];
const root = document.getElementById("explorer");
const top = h("div");
const body = h("div");
let columns = [];
let reel = null;
const scope = h("p", { class: "hint scope", hidden: true });

function build() {
  const { a, b } = store.state;
  reel?.stop();
  for (const { views } of columns) for (const view of views) view.stop?.();
  const shown = [a, b].filter((at) => at !== null).map((at) => sources[at]);
  const compared = comparison();
  store.only = compared && !compared.matched ? shown[0] : null;
  const series = shown.filter((source) => source.steps);
  const mixed = series.length > 0 && series.length < shown.length;
  columns = shown.map((source) => ({ source, views: viewsOf(source, mixed) }));
  reel = series.length ? film(series) : null;
  const main = h("main", { class: shown.length > 1 ? "two" : "one" });
  for (const { source, views } of columns) {
    const title =
      shown.length > 1
        ? [h("h2", { class: "whose" }, source.name), h("p", { class: "says" }, ...marked(source.sentences.join(" ")))]
        : [];
    const column = h(
      "div",
      { class: `column ${source.type} ${source.width > 2 ? "wide" : "slim"}` },
      ...title,
      ...views.map((view) => view.element),
    );
    column.style.gridRow = `span ${title.length + Math.max(...columns.map((one) => one.views.length))}`; // aligns the panels of both columns
    if (store.only) for (const type of ["pointerdown", "keydown", "click"]) column.addEventListener(type, () => (store.only = source), true);
    main.append(column);
  }
  top.replaceChildren(header(shown));
  body.replaceChildren(...(reel ? [reel.element] : []), scope, main);
  measure(root);
  return draw();
}

/** What is known of the two results that are shown, and whether their heads match. */
function comparison() {
  const { a, b } = store.state;
  return b === null ? undefined : data.comparisons[`${Math.min(a, b)},${Math.max(a, b)}`];
}

/** Panels from top to bottom; beside a profile, the heads of a series over training are where frequencies are. */
function viewsOf(source, mixed) {
  if (source.models)
    return [overlay, sideBySide, byFamily, byDepth, facts, provenance].map((view) => view(source));
  if (source.lengths) return [accuracy(source), attentionByLength(source), losses(source), provenance(source)];
  const optional = (there, view) => (there ? [view(source)] : []);
  return [
    ...optional(source.has("mass") && source.has("on_blocks") && store.state.b === null, story),
    plane(source),
    grid(source),
    ...optional(source.steps && !mixed, stepHeat),
    ...optional(source.roles && !mixed, headTable),
    head(source),
    depth(source),
    ...optional(source.steps && mixed, stepHeat),
    ...optional(source.frequencies, frequencyHeat),
    ...optional(source.plan, rotationPlan),
    provenance(source),
  ];
}

function header(shown) {
  const { a, b } = store.state;
  const options = (chosen, first) => [
    ...first,
    ...sources.map((source, at) => h("option", { value: at, selected: at === chosen }, source.name)),
  ];
  const pick = h(
    "select",
    {
      "aria-label": "Result shown",
      onchange: (event) =>
        change({ a: Number(event.target.value), b: Number(event.target.value) === b ? null : b, swap: null }),
    },
    ...options(a, []),
  );
  const other = h(
    "select",
    {
      "aria-label": "Compare with",
      onchange: (event) => change({ b: event.target.value === "" ? null : Number(event.target.value), swap: null }),
    },
    ...options(b, [h("option", { value: "" }, "compare with …")]).filter((_, at) => at !== a + 1),
  );
  const theme = h("button", { type: "button", class: "quiet", onclick: changeTheme }, "light / dark");
  const help = h("button", { type: "button", class: "quiet", onclick: () => guide.showModal() }, "? help");
  const guide = guideDialog();
  const first = readHash(data.view ?? "");
  const titled = data.title && first.a === a && first.b === b;
  const lead = titled ? data.lead : shown.length > 1 ? (comparison()?.says ?? []) : shown[0].sentences;
  const warnings = shown.flatMap((source) =>
    source.warnings.map((text) =>
      h("p", { class: "warning" }, shown.length > 1 ? `${source.name}: ${text}.` : `${capital(text)}.`),
    ),
  );
  return h(
    "header",
    {},
    h(
      "div",
      { class: "top" },
      h("h1", {}, titled ? data.title : shown.map((source) => source.name).join(" and ")),
      h("div", { class: "tools" }, ...(sources.length > 1 ? [pick, other] : []), theme, help),
    ),
    h("p", { class: "lead" }, ...marked(lead.join(" "))),
    ...warnings,
    guide,
  );
}

function guideDialog() {
  const lines = [
    [
      "Where and what",
      "An attention head gives every earlier token a weight. Swap the contents of two positions: if the weights stay in place, the head looks at where (positional); if they follow the contents, it looks at what (symbolic). Both scores range from 0 to 1.",
    ],
    [
      "Names and kinds of heads",
      "12.0 is head 0 of layer 12. A head looks at where if its positional score is at least 0.8 and its symbolic score at most 0.2; it looks at what in the opposite case. It is unfocused if both scores are at least 0.8, and mixed otherwise.",
    ],
    [
      "Selecting heads",
      "Hover over a head to see its name; click to select it; shift-click to add it; drag in the plane to select all heads inside. In the plane and the grid, arrow keys move through heads and layers. Escape clears the selection.",
    ],
    [
      "Ablation",
      "If single heads were ablated, the grid can be coloured by the effect of each ablation, and the panel of a head lists the numbers.",
    ],
    [
      "Many models",
      "In an atlas, every model has a colour and a shape. Hover over a model to highlight it in every figure; click to keep it highlighted; Page Up and Page Down move through models.",
    ],
    ["Frequencies", "Click a frequency to see the whole plane at that frequency alone; click it again or press Escape to return."],
    [
      "Sharing and saving",
      "The address of the page stores what is selected. The buttons CSV and SVG download tables and figures.",
    ],
  ];
  const dialog = h(
    "dialog",
    { "aria-label": "Help" },
    h("form", { method: "dialog" }, h("button", { class: "quiet" }, "close")),
    ...lines.flatMap(([title, text]) => [h("h2", {}, title), h("p", {}, ...marked(text))]),
  );
  return dialog;
}

function changeTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  forgetColours();
  draw();
}

function draw() {
  reel?.draw();
  const { frequency } = store.state;
  scope.hidden = !columns.some(({ source }) => isPart(source, store.state));
  scope.textContent = `The scores shown are those of frequency ${frequency} alone. The summary above, and everything marked as such, describes whole heads.`;
  return Promise.all(columns.flatMap(({ views }) => views.map((view) => view.draw())));
}

/** The state without what this report does not have: an address may belong to another report. */
function sound(state) {
  const there = (at) => (at !== null && at < sources.length ? at : null);
  const a = there(state.a) ?? 0;
  const b = there(state.b) === a ? null : there(state.b);
  const heads = state.heads.filter((label) => [a, b].some((at) => at !== null && sources[at].places.has(label)));
  const model = [a, b].some((at) => at !== null && sources[at].numbers?.has(state.model)) ? state.model : null;
  return { ...state, a, b, heads, model };
}

/** A page that was just opened shows the purest symbolic head, or else the purest positional one. */
export function opening(state) {
  const source = sources[state.a];
  if (source.lengths || source.models) return state;
  const [positional, symbolic] = ["positional", "symbolic"].map((name) => source.values(name, state));
  const kinds = source.kinds(state);
  const wanted = kinds.includes("what") ? "what" : "where";
  const gap = (at) => Math.abs(positional[at] - symbolic[at]);
  const best = kinds.flatMap((kind, at) => (kind === wanted ? [at] : [])).sort((p, q) => gap(q) - gap(p))[0];
  return best === undefined ? state : { ...state, heads: [source.labels[best]] };
}

onChange((state, before) => {
  if (state.a !== before.a || state.b !== before.b) return build();
  const redrawn = ["frequency", "step", "cells", "measure", "sorted"].some((name) => state[name] !== before[name]);
  if (redrawn) return draw();
  for (const { views } of columns) for (const view of views) view.mark();
});
onLight((label) => {
  for (const { views } of columns) for (const view of views) view.light(label);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  tip(null);
  change({ heads: [], model: null, frequency: null, swap: null });
  announce("Nothing is selected");
});
addEventListener("hashchange", () => {
  const before = store.state;
  store.state = sound(readHash(location.hash));
  for (const listener of store.listeners) listener(store.state, { ...before, step: NaN });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (forgetColours(), draw()));
let wide = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== wide) requestAnimationFrame(() => (measure(root), draw()));
  wide = innerWidth;
});

/** Show results; `live` are elements between the header and the figures that stay when the results change.
 * The view is the state that is given, or else that of the address. */
export async function start(given, shown, live = [], state = null) {
  data = given;
  sources = shown;
  explainTerms(document.body);
  root.replaceChildren(top, ...live, body);
  const hash = location.hash || (given.view ? `#${given.view}` : "");
  store.state = sound(state ?? readHash(hash));
  if (!hash && !state) store.state = opening(store.state);
  await build();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

/** Show another state of the same results: everything, or only the figures of these panels. */
export async function refresh(panels = null) {
  if (!panels) return build();
  for (const { views } of columns) for (const view of views) if (panels.includes(view.element.dataset.panel)) view.draw();
}

/** A result as the page embeds it. */
export function embedded(given) {
  const source = given.type === "atlas" ? new Atlas(given) : new Source(given);
  if (source.tokens) source.tokens = new EmbeddedAttention(source.tokens, source.arrays);
  return source;
}
