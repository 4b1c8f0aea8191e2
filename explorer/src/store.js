// What the reader selected: one object, kept in the address so that a link shows the same view.

const DEFAULTS = {
  a: 0,
  b: null,
  heads: [],
  model: null,
  frequency: null,
  step: null,
  cells: "difference",
  measure: null,
  sorted: false,
  swap: null,
  prompt: 0,
  token: null,
  live: null,
};
const SHORT = {
  a: "p",
  b: "with",
  heads: "h",
  model: "model",
  frequency: "f",
  step: "step",
  cells: "g",
  measure: "m",
  sorted: "sorted",
  swap: "swap",
  prompt: "prompt",
  token: "token",
  live: "live",
};

export const store = { state: { ...DEFAULTS }, lit: null, listeners: [], lights: [], only: null };

export const onChange = (listener) => store.listeners.push(listener);
export const onLight = (listener) => store.lights.push(listener);

export function change(part) {
  const before = store.state;
  store.state = { ...before, ...part };
  clearTimeout(writing);
  writing = setTimeout(writeAddress, 150); // writing an address is slow, and browsers limit how often it may happen
  const errors = [];
  for (const listener of store.listeners) {
    try {
      listener(store.state, before);
    } catch (error) {
      errors.push(error); // the others still have to know
    }
  }
  if (errors.length) throw errors[0];
}

let writing;

function writeAddress() {
  try {
    history.replaceState(null, "", writeHash(store.state) || location.pathname + location.search);
  } catch {} // a page inside a notebook has no address
}

/** Light a head in every figure, or none. */
export function light(head) {
  if (head === store.lit) return;
  store.lit = head;
  for (const listener of store.lights) listener(head);
}

/** The places in a source of the heads that are selected; `only` is set if the heads of two sources do not match. */
export const selectedIn = (source) =>
  store.only && store.only !== source ? [] : placesOf(source, store.state.heads);

/** The places of heads by their labels, without those that the source does not have. */
export const placesOf = (source, labels) =>
  labels.map((label) => source.places.get(label)).filter((at) => at !== undefined);

/** A click selects one head, shift-click adds or removes one; the last one is shown in detail. */
export function choose(head, adding = false) {
  const { heads } = store.state;
  if (!adding) return change({ heads: [head], swap: null });
  change({ heads: heads.includes(head) ? heads.filter((one) => one !== head) : [...heads, head], swap: null });
}

export function writeHash(state) {
  const parts = [];
  for (const [name, short] of Object.entries(SHORT)) {
    const value = state[name];
    if (JSON.stringify(value) === JSON.stringify(DEFAULTS[name])) continue;
    parts.push(
      `${short}=${encodeURIComponent(Array.isArray(value) ? value.join(",") : value === true ? "yes" : typeof value === "object" ? JSON.stringify(value) : value)}`,
    );
  }
  return parts.length ? `#${parts.join("&")}` : "";
}

export function readHash(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (name) => (/^\d+$/.test(given.get(name) ?? "") ? Number(given.get(name)) : null);
  const list = (name) => (given.get(name) ?? "").split(",").filter(Boolean);
  const swap = list("swap").map(Number);
  return {
    ...DEFAULTS,
    a: number("p") ?? 0,
    b: number("with"),
    heads: list("h"),
    model: given.get("model"),
    frequency: number("f"),
    step: number("step"),
    cells: given.get("g") ?? DEFAULTS.cells,
    measure: given.get("m"),
    sorted: given.get("sorted") === "yes",
    swap: swap.length === 2 && swap.every(Number.isInteger) ? swap : null,
    prompt: number("prompt") ?? 0,
    token: number("token"),
    live: parsed(given.get("live")),
  };
}

/** What the live page keeps in the address; null if it is not an object. */
function parsed(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}
