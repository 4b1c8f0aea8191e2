// The page: a header written from the data, one or two columns of linked views, keys, the address.

import { Atlas } from "./atlas.js";
import { byDepth, byFamily, facts } from "./atlas-families.js";
import { overlay, sideBySide } from "./atlas-plane.js";
import { forgetColours, measure } from "./chart.js";
import { depth } from "./depth.js";
import { film } from "./film.js";
import { grid } from "./grid.js";
import { head } from "./head.js";
import { frequencyHeat, stepHeat } from "./heat.js";
import { accuracy } from "./lengths.js";
import { looks, losses } from "./looks.js";
import { plane } from "./plane.js";
import { prompt } from "./prompt.js";
import { provenance } from "./provenance.js";
import { Source } from "./source.js";
import { change, onChange, onLight, readHash, store } from "./store.js";
import { announce, capital, explainTerms, h, said, tip } from "./ui.js";
import { isPart } from "./words.js";

const data = JSON.parse(document.getElementById("data").textContent);
const sources = data.sources.map((given) => (given.type === "atlas" ? new Atlas(given) : new Source(given)));
const root = document.getElementById("explorer");
let columns = [];
let reel = null;
const scope = h("p", { class: "hint scope", hidden: true });

function build() {
  const { a, b } = store.state;
  reel?.stop();
  const shown = [a, b].filter((at) => at !== null).map((at) => sources[at]);
  const series = shown.filter((source) => source.steps);
  const mixed = series.length > 0 && series.length < shown.length;
  columns = shown.map((source) => ({ source, views: viewsOf(source, mixed) }));
  reel = series.length ? film(series) : null;
  const main = h("main", { class: shown.length > 1 ? "two" : "one" });
  for (const { source, views } of columns) {
    const title =
      shown.length > 1
        ? [h("h2", { class: "whose" }, source.name), h("p", { class: "says" }, ...said(source.sentences.join(" ")))]
        : [];
    const column = h(
      "div",
      { class: `column ${source.type} ${source.width > 2 ? "wide" : "slim"}` },
      ...title,
      ...views.map((view) => view.element),
    );
    column.style.gridRow = `span ${title.length + Math.max(...columns.map((one) => one.views.length))}`; // panels stand beside each other
    main.append(column);
  }
  root.replaceChildren(header(shown), ...(reel ? [reel.element] : []), scope, main);
  measure(root);
  draw();
}

/** Panels from top to bottom; beside a profile, a film's heads over training stand where frequencies do. */
function viewsOf(source, mixed) {
  if (source.models)
    return [overlay, sideBySide, byFamily, byDepth, facts, provenance].map((view) => view(source));
  if (source.lengths) return [accuracy(source), looks(source), losses(source), provenance(source)];
  const optional = (there, view) => (there ? [view(source)] : []);
  return [
    plane(source),
    grid(source),
    ...optional(source.steps && !mixed, stepHeat),
    head(source),
    depth(source),
    ...optional(source.steps && mixed, stepHeat),
    ...optional(source.frequencies, frequencyHeat),
    ...optional(source.prompt, prompt),
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
      "aria-label": "What is shown",
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
  const theme = h("button", { type: "button", class: "quiet", onclick: changeTheme }, "light or dark");
  const help = h("button", { type: "button", class: "quiet", onclick: () => guide.showModal() }, "? help");
  const guide = guideDialog();
  const compared = shown.length > 1 ? (data.comparisons[`${Math.min(a, b)},${Math.max(a, b)}`] ?? []) : [];
  const lead = shown.length > 1 ? compared : shown[0].sentences;
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
      h("h1", {}, shown.map((source) => source.name).join(" and ")),
      h("div", { class: "tools" }, ...(sources.length > 1 ? [pick, other] : []), theme, help),
    ),
    h("p", { class: "lead" }, ...said(lead.join(" "))),
    ...warnings,
    guide,
  );
}

function guideDialog() {
  const lines = [
    [
      "What one sees",
      "An attention head gives every token before it a weight. Exchange the contents of two places: if the weights stay, the head looks at where; if they go along, it looks at what. Both scores run from 0 to 1.",
    ],
    [
      "A head's name",
      "12.0 is head 0 of layer 12. It looks at where with a positional score of at least 0.8 and a symbolic one of at most 0.2, at what the other way round; with both at least 0.8 it is unfocused, else mixed.",
    ],
    [
      "Choosing",
      "Hover names a head, click chooses it, click with shift adds one, dragging in the plane chooses all inside. In the plane or the grid, arrow keys go through heads and layers. Escape clears.",
    ],
    [
      "Without a head",
      "Where single heads were turned off, the grid can be coloured by what becomes of the model without them, and a head's panel has the numbers.",
    ],
    [
      "Many models",
      "In an atlas every model has a colour and a shape. Pointing at a model lets it stand out everywhere, a click keeps it; page keys go through models.",
    ],
    ["Frequencies", "Click a frequency to see the whole plane at it alone; again, or Escape, to return."],
    [
      "Taking it along",
      "The address of the page holds what was chosen. CSV and SVG stand beside every table and figure.",
    ],
  ];
  const dialog = h(
    "dialog",
    { "aria-label": "Help" },
    h("form", { method: "dialog" }, h("button", { class: "quiet" }, "close")),
    ...lines.flatMap(([title, text]) => [h("h2", {}, title), h("p", {}, ...said(text))]),
  );
  return dialog;
}

function changeTheme() {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--scheme").trim() === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  forgetColours();
  draw();
}

function draw() {
  reel?.draw();
  const { frequency } = store.state;
  scope.hidden = !columns.some(({ source }) => isPart(source, store.state));
  scope.textContent = `The scores shown are those of frequency ${frequency} alone. The sentences on the whole model, and what is marked so, are of whole heads.`;
  for (const { views } of columns) for (const view of views) view.draw();
}

/** What was chosen must be there: an address may be of another report. */
function sound(state) {
  const there = (at) => (at !== null && at < sources.length ? at : null);
  const a = there(state.a) ?? 0;
  const b = there(state.b) === a ? null : there(state.b);
  const heads = state.heads.filter((label) => [a, b].some((at) => at !== null && sources[at].places.has(label)));
  const model = [a, b].some((at) => at !== null && sources[at].numbers?.has(state.model)) ? state.model : null;
  return { ...state, a, b, heads, model };
}

/** A page that was just opened shows the head that says most: the purest what, else the purest where. */
function opening(state) {
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
  announce("Nothing is chosen");
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

explainTerms(document.body);
store.state = sound(readHash(location.hash));
if (!location.hash) store.state = opening(store.state);
build();
document.documentElement.dataset.ready = String(Math.round(performance.now()));
