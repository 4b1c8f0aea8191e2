// Ablate heads or frequencies: next tokens before and after, beside as many chosen at random.

import { changeLive, live, promptOf } from "./live-state.js";
import { nextTokens } from "./next-tokens.js";
import { store } from "./store.js";
import { quoted } from "./token-strip.js";
import { choices, h, panel, percent } from "./ui.js";

const WAYS = ["zero", "mean", "drop", "freeze", "keep"];
const HINTS = {
  zero: "The output of these heads is set to zero.",
  mean: "The output of these heads is set to its mean over the tokens of this prompt.",
  drop: "These frequencies no longer contribute to the attention logits.",
  freeze: "These frequencies no longer rotate, so that they carry no position.",
  keep: "Only these frequencies contribute to the attention logits.",
};
const BANDS = ["fastest quarter", "second quarter", "third quarter", "slowest quarter"];
const READY = ["10 most retrieving heads", "10 most symbolic heads", "10 most positional heads", "what heads", "where heads"];

export function ablatePanel(ask, onPython) {
  const shown = panel("ablate", "Ablate", "");
  const field = h("input", {
    type: "text",
    list: "ready",
    placeholder: "heads such as 3.1, 4.2, or words such as 10 most retrieving heads",
    "aria-label": "Heads or frequencies to ablate",
    onchange: () => changeLive({ choose: field.value.trim(), draw: 0 }),
    onkeydown: (event) => event.key === "Enter" && choose(field.value.trim(), live().how),
  });
  const ready = h("datalist", { id: "ready" }, ...[...READY, ...BANDS].map((words) => h("option", { value: words })));
  const selection = h("button", { type: "button", onclick: () => choose(store.state.heads.join(", ")) }, "the selected heads");
  const retrieving = h("button", { type: "button", onclick: () => choose(READY[0]) }, "the ten most retrieving here");
  const band = h(
    "select",
    { "aria-label": "Band of frequencies", onchange: () => band.value && choose(band.value, "drop") },
    h("option", { value: "" }, "a band of frequencies …"),
    ...BANDS.map((words) => h("option", { value: words }, words)),
  );
  const way = choices("How", WAYS, "zero", (how) => changeLive({ how }));
  const button = h("button", { type: "button", class: "strong", onclick: () => go() }, "ablate");
  const again = h("button", { type: "button", hidden: true, onclick: () => go(live().draw + 1) }, "draw random ones again");
  const words = h("p", { class: "verdict", "aria-live": "polite" });
  const tables = h("div", { class: "nexts" });
  shown.body.append(
    h("div", { class: "picks" }, field, ready, selection, retrieving, band),
    h("div", { class: "picks" }, way.element, button, again),
    words,
    tables,
  );
  let draws = new Map();
  let drawnFor = "";

  function choose(text, how = live().how === "zero" || live().how === "mean" ? live().how : "zero") {
    changeLive({ choose: text, how, draw: 0 });
    if (text) go();
  }

  async function go(draw = 0) {
    const state = live();
    const chosen = state.choose || field.value.trim();
    if (!chosen) return void (words.textContent = "Choose heads first: click, drag in the plane, or type a list.");
    changeLive({ choose: chosen, draw });
    button.disabled = true;
    words.textContent = "Running the model three times …";
    try {
      const found = await ask("ablate", { ...promptOf(state), choose: chosen, how: state.how, draw });
      if (found) display(found, JSON.stringify([promptOf(state), chosen, state.how]), draw);
      else words.textContent = "";
    } catch (error) {
      words.textContent = error.message;
      tables.replaceChildren();
    }
    button.disabled = false;
  }

  function display(found, key, draw) {
    if (key !== drawnFor) draws = new Map();
    drawnFor = key;
    const { followed, number, chosen, drawn, how } = found;
    draws.set(draw, followed.random);
    const whole = how === "zero" || how === "mean";
    const what = whole ? `${number} head${number === 1 ? "" : "s"}` : `${number} ${number === 1 ? "frequency" : "frequencies"}`;
    const done = { freeze: `with ${what} frozen`, keep: `with only ${what}` }[how] ?? `without ${what}`;
    const seen = [...draws.values()];
    const others = seen.length > 1 ? `${percent(Math.min(...seen))} to ${percent(Math.max(...seen))} in ${seen.length} draws` : percent(followed.random);
    words.textContent = `Probability of ${quoted(followed.text)}${followed.right ? ", the right answer" : ""}: ${percent(followed.before)} before, ${percent(followed.after)} ${done}, ${others} with as many chosen at random instead.`;
    tables.replaceChildren(
      nextTokens("Before", found.before, "the model as it is"),
      nextTokens("After", found.after, short(chosen)),
      nextTokens("Random control", found.random, short(drawn)),
    );
    again.hidden = false;
    again.textContent = whole ? "draw random heads again" : "draw random frequencies again";
    onPython(found.python);
  }

  const short = (text) => (text.length > 90 ? `${text.slice(0, 88)} …` : text);

  /** Buttons and fields as the state has them. */
  function draw() {
    const { choose: text, how } = live();
    if (document.activeElement !== field) field.value = text;
    way.show(how);
    selection.disabled = !store.state.heads.length;
    selection.textContent = store.state.heads.length > 1 ? `the ${store.state.heads.length} selected heads` : "the selected head";
    shown.rehint(`${HINTS[how]} Beside it, as many heads of the same layers, or as many frequencies, chosen at random.`);
  }

  /** A new prompt: what was ablated before no longer applies. */
  function clear() {
    tables.replaceChildren();
    words.textContent = "";
    again.hidden = true;
    draws = new Map();
  }
  return { ...shown, draw, clear, go };
}
