// Parts of the page that are no figures. Text always goes in as text, never as markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}

/** A section with a title, one line on how to read it, and what can be taken from it. */
export function panel(id, title, hint, { csv, svg, tools = [], inner = false } = {}) {
  const name = h(inner ? "h3" : "h2", {}, title);
  const told = h("p", { class: "hint" }, ...said(hint));
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
  const element = h(inner ? "div" : "section", { class: inner ? "part" : "panel", "data-panel": id }, bar, told, body);
  return {
    element,
    body,
    name,
    retitle: (text) => (name.textContent = text),
    rehint: (text) => told.replaceChildren(...said(text)),
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

/** A head by its name, to choose it. */
export const headButton = (label, choose) =>
  h("button", { type: "button", class: "quiet", "aria-label": `Head ${label}`, onclick: () => choose(label) }, label);

const TERMS = {
  "positional score": "1: attention stays at its places when contents are swapped. 0: it does not.",
  "symbolic score": "1: attention follows the contents when they are swapped. 0: it does not.",
  frequency:
    "A rotary head is a bundle of small heads, one for each speed at which its dimensions turn. Number 1 turns fastest.",
  entropy: "0: all attention on one token. 1: spread evenly over all of them.",
  "exclusion bound":
    "Theory: a head whose logits vary cannot be purely positional and purely symbolic. The variance of its logits never exceeds this bound.",
  "pure since":
    "The first step from which on the head has at least 0.9 on one axis and at most 0.1 on the other, to the end.",
  blocks: "Equally long pieces of the prompt, such as the statements of a list, that may change places.",
  "without first token":
    "Positional and symbolic score with the first token hidden from the head: many heads rest on it, whatever it says.",
  "key head": "The head of keys and values that this one reads. Heads with the same number share it.",
  "95 % interval": "Bootstrap over prompts: other prompts of the same kind would give a score in this range.",
};

const COLOURED = "\\b(?:at|stays?|follows?|Circle:|square:) "; // before where and what, where they are terms

/** Words with their terms explained on hover, where and what in their colours. */
export function said(text) {
  const pattern = new RegExp(`\\b(${Object.keys(TERMS).join("|")})\\b|(${COLOURED})(where|what)\\b`);
  const parts = text.split(pattern).filter((part) => part !== undefined);
  return parts.map((part) => {
    if (part === "where" || part === "what") return h("b", { class: part }, part);
    if (part in TERMS)
      return h(
        "button",
        { type: "button", class: "term", "data-tip": TERMS[part], "aria-label": `${part}: ${TERMS[part]}` },
        part,
      );
    return part;
  });
}

let bubble;
let told = { text: null, size: null }; // what the bubble says, and how large that makes it

export function tip(content, x, y) {
  bubble ??= document.body.appendChild(h("div", { class: "tip", role: "tooltip", hidden: true }));
  const text = content?.join("\n") ?? null;
  if (text !== told.text) {
    bubble.hidden = content === null;
    if (content) bubble.replaceChildren(...content.map((line, at) => h("div", { class: at ? "" : "first" }, line)));
    told = { text, size: content && bubble.getBoundingClientRect() };
  }
  if (content === null) return;
  const { width, height } = told.size;
  const left = Math.min(x + 14, innerWidth - width - 8);
  bubble.style.left = `${Math.max(8, left)}px`;
  bubble.style.top = `${y + 18 + height > innerHeight ? y - height - 10 : y + 18}px`;
}

/** Explanations appear for whatever carries one, under the pointer or with the keyboard's focus. */
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

/** For those who listen instead of looking. */
export function announce(text) {
  voice ??= document.body.appendChild(h("div", { class: "unseen", role: "status", "aria-live": "polite" }));
  voice.textContent = text;
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
    // A spreadsheet would run text that begins like a formula.
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

/** A figure with its looks written into it, so that it looks the same outside of the page. */
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

/** Two digits, three where they matter; a dash where there is no number. */
export function number(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value.toFixed(digits).replace("-", "−");
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export const percent = (share) => `${number(100 * share, share < 0.0095 ? 2 : share < 0.0995 ? 1 : 0)} %`;

export const count = (value) => value.toLocaleString("en");
