// Parts of the page other than figures. Text is always inserted as text, never as markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}

/** A section with a title, a line on how to read it, and download buttons. */
export function panel(id, title, hint, { csv, svg, tools = [], inner = false } = {}) {
  const name = h(inner ? "h3" : "h2", {}, title);
  const line = h("p", { class: "hint" }, ...marked(hint));
  const body = h("div", { class: "body" });
  const save = (what, made) =>
    made
      ? h(
          "button",
          {
            type: "button",
            class: "quiet",
            "aria-label": `Download ${title} as ${what}`,
            onclick: () => download(made()),
          },
          what,
        )
      : null;
  const bar = h(
    "div",
    { class: "bar" },
    name,
    h("div", { class: "tools" }, ...tools, save("CSV", csv), save("SVG", svg)),
  );
  const element = h(inner ? "div" : "section", { class: inner ? "part" : "panel", "data-panel": id }, bar, line, body);
  return {
    element,
    body,
    name,
    retitle: (text) => (name.textContent = text),
    rehint: (text) => line.replaceChildren(...marked(text)),
  };
}

/** Buttons of which one is pressed. */
export function choices(label, options, chosen, choose) {
  const buttons = options.map((option) => h("button", { type: "button", onclick: () => choose(option) }, option));
  const show = (one) =>
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(options[at] === one)));
  show(chosen);
  return { element: h("div", { class: "choices", role: "group", "aria-label": label }, ...buttons), show };
}

/** A button that selects a head. */
export const headButton = (label, choose) =>
  h("button", { type: "button", class: "quiet", "aria-label": `Head ${label}`, onclick: () => choose(label) }, label);

const TERMS = {
  "positional score": "How much a head looks at where. 1: its attention stays in place when contents are swapped. 0: it does not.",
  "symbolic score": "How much a head looks at what. 1: its attention follows the contents when they are swapped. 0: it does not.",
  frequency:
    "A rotary head rotates its dimensions in pairs, each pair at its own frequency, and each can be scored as a small head. Number 1 is the fastest.",
  entropy: "0: all attention on one token. 1: spread evenly over all tokens.",
  "exclusion bound":
    "Theory: a head whose logits vary cannot be purely positional and purely symbolic. The variance of its logits never exceeds this bound.",
  "pure since":
    "The first step after which one score stays at least 0.9 and the other at most 0.1.",
  blocks: "Pieces of the prompt of equal length, such as the statements of a list, that are swapped.",
  "without first token":
    "Positional and symbolic score with the first token hidden from the head: many heads rest on it, whatever its content.",
  "key head": "The key-value head that this head reads. Heads with the same number share it.",
  "95 % interval": "Bootstrap over prompts: other prompts of the same kind would give a score in this range.",
};

const COLOURED = "\\b(?:at |Circle: |square: |positional \\(|symbolic \\()"; // precedes where and what if they are terms

/** Text with its terms explained on hover, and with where and what in their colours. */
export function marked(text) {
  const terms = Object.keys(TERMS).join("|");
  const pattern = new RegExp(`\\b((?:${terms})\\b[.,;:)]*)|(${COLOURED})(where|what)\\b`);
  const parts = text.split(pattern).filter((part) => part !== undefined);
  return parts.map((part) => {
    if (part === "where" || part === "what") return h("b", { class: part }, part);
    const term = part.replace(/[.,;:)]+$/, "");
    if (!(term in TERMS)) return part;
    const explained = { "data-tip": TERMS[term], "aria-label": `${term}: ${TERMS[term]}` };
    const button = h("button", { type: "button", class: "term", ...explained }, term);
    return h("span", { class: "unbroken" }, button, part.slice(term.length)); // no line starts with a full stop
  });
}

let bubble;
let shown = { text: null, size: null }; // the text of the bubble, and its size

export function tip(content, x, y) {
  bubble ??= document.body.appendChild(h("div", { class: "tip", role: "tooltip", hidden: true }));
  const text = content?.join("\n") ?? null;
  if (text !== shown.text) {
    bubble.hidden = content === null;
    if (content) bubble.replaceChildren(...content.map((line, at) => h("div", { class: at ? "" : "first" }, line)));
    shown = { text, size: content && bubble.getBoundingClientRect() };
  }
  if (content === null) return;
  const { width, height } = shown.size;
  const left = Math.min(x + 14, innerWidth - width - 8);
  bubble.style.left = `${Math.max(8, left)}px`;
  bubble.style.top = `${y + 18 + height > innerHeight ? y - height - 10 : y + 18}px`;
}

/** Explanations appear for elements that carry one, on hover and on keyboard focus. */
export function explainTerms(root) {
  const show = (event) => {
    const term = event.target.closest?.("[data-tip]");
    if (!term) return;
    const { left, bottom } = term.getBoundingClientRect();
    tip([term.explain?.() ?? term.dataset.tip], left, bottom - 12);
  };
  root.addEventListener("pointerover", show);
  root.addEventListener("focusin", show);
  const hide = (event) => event.target.closest?.("[data-tip]") && tip(null);
  root.addEventListener("pointerout", hide);
  root.addEventListener("focusout", hide);
}

let voice;

/** Text for screen readers. */
export function announce(text) {
  voice ??= document.body.appendChild(h("div", { class: "unseen", role: "status", "aria-live": "polite" }));
  voice.textContent = text;
}

/** Copy a text; the button says so for a moment. */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.body.appendChild(h("textarea", { class: "unseen" }, text)); // pages opened from disk may not use the clipboard
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = before), 1500);
}

export function download({ name, type, content }) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** Rows of equal keys as a CSV file. */
export function csvFile(name, rows) {
  const columns = Object.keys(rows[0] ?? {});
  const cell = (value) => {
    let text = value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
    // A spreadsheet would evaluate text that begins like a formula.
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [columns, ...rows.map((row) => columns.map((column) => row[column]))];
  return {
    name: `${safe(name)}.csv`,
    type: "text/csv",
    content: lines.map((line) => `${line.map(cell).join(",")}\n`).join(""),
  };
}

const KEPT = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-opacity",
  "stroke-linejoin",
  "opacity",
  "font-size",
  "font-weight",
  "text-anchor",
  "dominant-baseline",
];

/** A figure with its styles written into it, so that it looks the same outside the page. */
export function svgFile(name, svg) {
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, at) => {
    const looks = getComputedStyle(originals[at]);
    for (const property of KEPT) element.setAttribute(property, looks.getPropertyValue(property));
    element.removeAttribute("class");
    element.removeAttribute("tabindex");
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("font-family", "system-ui, sans-serif");
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  ground.setAttribute("width", "100%");
  ground.setAttribute("height", "100%");
  ground.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  copy.prepend(ground);
  return { name: `${safe(name)}.svg`, type: "image/svg+xml", content: new XMLSerializer().serializeToString(copy) };
}

const safe = (name) => name.replace(/[^\w.-]+/g, "-");

/** A number with some digits; a dash for NaN. */
export function number(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value.toFixed(digits).replace("-", "−");
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export const percent = (share) => `${number(100 * share, share < 0.0095 ? 2 : share < 0.0995 ? 1 : 0)} %`;

export const count = (value) => value.toLocaleString("en");
