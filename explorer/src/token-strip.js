// A strip of tokens: shade and height show attention, a click chooses the query or two blocks to swap. It is given
// plain data and callbacks, and does not know where the data comes from.

import { announce, choices, h, percent, tip } from "./ui.js";

const HEIGHT = 44; // of the skyline, in units of its drawing
const MODES = ["the query", "blocks to swap", "the ends of a new block"];
const SVG = "http://www.w3.org/2000/svg";
let strips = 0;

/**
 * `onQuery(token)` is called when a token is chosen as the query, `onSwap(i, j)` when two blocks are to be swapped, and
 * `onDraw(start, stop)`, if it is given, when a block is drawn.
 * The strip returned shows what `show` is given:
 *
 *   tokens    text of every token
 *   blocks    [start, stop] of every block, in order
 *   weights   attention on every token, from 0 to 1
 *   query     the token whose attention it is; later tokens are faded
 *   swap      two blocks that are marked A and B, or null
 *   swappable whether blocks can be chosen
 *   answer    {block, token} that hold the answer; either may be null
 */
export function tokenStrip({ label, onQuery, onSwap = () => {}, onDraw = null }) {
  const id = `strip-${++strips}`;
  const text = h("div", { class: "strip", role: "listbox", tabindex: 0, "aria-label": label });
  const sky = document.createElementNS(SVG, "svg");
  sky.setAttribute("class", "skyline");
  sky.setAttribute("preserveAspectRatio", "none");
  sky.setAttribute("aria-hidden", "true");
  const layers = Object.fromEntries(
    ["pair", "ground", "bars", "query"].map((name) => {
      const path = sky.appendChild(document.createElementNS(SVG, "path"));
      path.setAttribute("class", name);
      return [name, path];
    }),
  );
  const mode = choices("A click chooses", onDraw ? MODES : MODES.slice(0, 2), MODES[0], chooseMode);
  const modes = h("div", { class: "picks" }, "a click chooses", mode.element, "or drag a block onto another to swap them");
  let given = { tokens: [], blocks: [], weights: [], query: 0, swap: null, swappable: false, answer: {} };
  let spans = [];
  let groups = [];
  let blockOf = [];
  let picking = MODES[0];
  let first = null; // the block, or the end of a new one, that was chosen first
  let dragged = null; // the block under the pointer when it was pressed
  let over = null; // the block that it is dragged over
  let cursor = 0; // the token that keys act on

  function chooseMode(one) {
    picking = one;
    first = null;
    mode.show(one);
    mark();
  }

  function show(data) {
    const before = given;
    given = { ...given, ...data };
    if (given.tokens !== before.tokens || given.blocks !== before.blocks) build();
    modes.hidden = !given.swappable && !onDraw;
    if (!given.swappable && picking === MODES[1]) chooseMode(MODES[0]);
    const top = Math.max(1e-9, ...given.weights);
    given.heights = Array.from(given.weights, (weight) => Math.sqrt(weight / top));
    spans.forEach((span, at) => {
      span.style.setProperty("--share", (given.heights[at] || 0).toFixed(3));
      span.classList.toggle("after", at > given.query);
      span.setAttribute("aria-selected", String(at === given.query));
    });
    mark();
  }

  /** One span per token; the tokens of a block are a group. */
  function build() {
    const { tokens, blocks, answer } = given;
    blockOf = tokens.map(() => null);
    blocks.forEach(([start, stop], block) => blockOf.fill(block, start, stop));
    groups = [];
    text.replaceChildren();
    spans = tokens.map((token, at) => {
      const name = token.trim() ? null : "white space";
      const span = h("span", { role: "option", id: `${id}-${at}`, "data-at": at, "aria-label": name }, visible(token));
      const block = blockOf[at];
      if (block === null) text.append(span);
      else (groups[block] ??= text.appendChild(groupOf(block))).append(span);
      return span;
    });
    groups.forEach((group) => group.classList.toggle("whole", !group.textContent.includes("\n")));
    groups[answer?.block]?.classList.add("target");
    spans[answer?.token]?.classList.add("answer");
    cursor = Math.min(given.query, tokens.length - 1);
    first = null;
  }

  const groupOf = (block) => h("span", { class: "block", role: "group", "aria-label": `block ${block + 1}` });

  /** What is chosen, in the text and in the skyline. */
  function mark() {
    const { tokens, blocks, swap, query, swappable } = given;
    const pair = first === null || picking === MODES[2] ? swap : [first];
    groups.forEach((group, block) => {
      const nth = swappable && pair ? pair.indexOf(block) : -1;
      if (nth < 0) delete group.dataset.swap;
      else group.dataset.swap = "AB"[nth];
      group.classList.toggle("over", block === over && over !== dragged);
    });
    text.classList.toggle("blocks", picking === MODES[1]);
    text.setAttribute("aria-activedescendant", `${id}-${cursor}`);
    spans.forEach((span, at) => span.classList.toggle("cursor", at === cursor));
    sky.setAttribute("viewBox", `0 0 ${Math.max(1, tokens.length)} ${HEIGHT + 4}`);
    const band = ([start, stop], top, bottom) => `M${start},${top}H${stop}V${bottom}H${start}z`;
    const shown = swappable && pair ? pair.filter((block) => blocks[block]) : [];
    layers.pair.setAttribute("d", shown.map((block) => band(blocks[block], 0, HEIGHT)).join(""));
    layers.ground.setAttribute("d", blocks.map(([start, stop]) => band([start + 0.15, stop - 0.15], HEIGHT + 1, HEIGHT + 3)).join(""));
    const bar = (height, at) => (height ? band([at + 0.05, at + 0.95], HEIGHT * (1 - height), HEIGHT) : "");
    layers.bars.setAttribute("d", (given.heights ?? []).map(bar).join(""));
    layers.query.setAttribute("d", `M${query + 0.5},0V${HEIGHT}`);
  }

  const words = (at) => {
    const block = blockOf[at];
    const place = `Token ${at + 1} of ${given.tokens.length}, ${quoted(given.tokens[at])}${block === null ? "" : `, block ${block + 1}`}`;
    const note = at === given.query ? ", the query itself" : "";
    return at > given.query ? `${place}: after the query` : `${place}: ${percent(given.weights[at] ?? 0)}${note}`;
  };

  /** Act on a token: it becomes the query, or its block one of the two to swap. */
  function act(at) {
    if (picking === MODES[0]) return onQuery(at);
    if (picking === MODES[2]) return drawEnd(at);
    const block = blockOf[at];
    if (block === null) return announce("This token belongs to no block");
    if (first === null || first === block) {
      first = first === block ? null : block;
      announce(first === null ? "No block is chosen" : `Block ${block + 1} is chosen: choose the block to swap it with`);
      return mark();
    }
    const pair = [first, block];
    first = null;
    swapThem(...pair);
  }

  /** One end of a new block; the second one completes it. */
  function drawEnd(at) {
    if (first === null) {
      first = at;
      announce("The block begins or ends here: choose its other end");
      return spans[at].classList.add("end");
    }
    const [start, stop] = [Math.min(first, at), Math.max(first, at) + 1];
    spans[first].classList.remove("end");
    first = null;
    onDraw(start, stop);
  }

  function swapThem(i, j) {
    announce(`Swapping blocks ${i + 1} and ${j + 1}`);
    onSwap(i, j);
  }

  function moveTo(at) {
    cursor = Math.min(spans.length - 1, Math.max(0, at));
    mark();
    reveal(cursor);
    announce(words(cursor));
  }

  /** Scroll the text, and nothing else, to a token. */
  function reveal(at) {
    const [box, inside] = [text.getBoundingClientRect(), spans[at].getBoundingClientRect()];
    if (inside.top < box.top) text.scrollTop -= box.top - inside.top + 8;
    if (inside.bottom > box.bottom) text.scrollTop += inside.bottom - box.bottom + 8;
  }

  text.addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    const starts = given.blocks.map(([start]) => start);
    const to = {
      ArrowLeft: () => cursor - 1,
      ArrowRight: () => cursor + 1,
      ArrowUp: () => starts.findLast((start) => start < cursor) ?? 0,
      ArrowDown: () => starts.find((start) => start > cursor) ?? spans.length - 1,
      Home: () => 0,
      End: () => spans.length - 1,
    }[event.key];
    if (to) moveTo(to());
    else if (event.key === "Enter" || event.key === " ") act(cursor);
    else return;
    event.preventDefault();
  });

  const tokenAt = (event) => {
    const found = event.target.closest?.("[data-at]");
    return found ? Number(found.dataset.at) : null;
  };
  const blockAt = (event) => {
    const at = tokenAt(event);
    return at === null ? null : blockOf[at];
  };
  text.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch") return;
    if (picking === MODES[2]) return drawFrom(event);
    if (!given.swappable) return;
    dragged = blockAt(event);
    if (dragged === null) return;
    addEventListener("pointerup", (up) => drop(up), { once: true });
  });
  text.addEventListener("pointermove", (event) => {
    const at = tokenAt(event);
    tip(at === null ? null : [words(at)], event.clientX, event.clientY);
    const block = dragged === null || at === null ? null : blockOf[at];
    if (block === over) return;
    over = block;
    text.classList.toggle("dragging", over !== null && over !== dragged);
    mark();
  });
  text.addEventListener("pointerleave", () => tip(null));

  /** A drag over tokens makes them a new block; it ends on another element than it began on, and so is not a click. */
  function drawFrom(event) {
    const from = tokenAt(event);
    addEventListener(
      "pointerup",
      (up) => {
        const to = text.contains(up.target) ? tokenAt(up) : null;
        if (from === null || to === null || to === from) return;
        getSelection()?.removeAllRanges();
        first = from;
        drawEnd(to);
      },
      { once: true },
    );
  }

  function drop(event) {
    const [from, to] = [dragged, text.contains(event.target) ? blockAt(event) : null];
    dragged = over = null;
    text.classList.remove("dragging");
    getSelection()?.removeAllRanges();
    if (to !== null && to !== from) swapThem(from, to);
    else mark();
  }
  // A drag ends on another element than it began on, and so is not a click on a token.
  text.addEventListener("click", (event) => {
    const at = tokenAt(event);
    if (at === null) return;
    cursor = at;
    act(at);
  });

  const under = (event) => {
    const box = sky.getBoundingClientRect();
    return Math.min(spans.length - 1, Math.floor((spans.length * (event.clientX - box.left)) / box.width));
  };
  sky.addEventListener("pointermove", (event) => tip([words(under(event))], event.clientX, event.clientY));
  sky.addEventListener("pointerleave", () => tip(null));
  sky.addEventListener("click", (event) => {
    cursor = under(event);
    reveal(cursor);
    act(cursor);
  });

  return { element: h("div", { class: "tokens" }, modes, sky, text), show };
}

/** A token in quotation marks, with its white space visible. */
export const quoted = (token) => `“${visible(token).replace(/\n/g, "")}”`;

/** Text that has a width: line breaks get a sign, and so do tokens without any text. */
const visible = (token) => (token === "" ? "·" : token.replace(/\n/g, "⏎\n"));
