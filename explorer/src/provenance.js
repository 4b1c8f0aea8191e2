// How this was measured: all that it takes to do it again.

import { csvFile, h, number, panel } from "./ui.js";

const HINTS = {
  profile:
    "The command that repeats it, the choices that matter, and how far the capture is from the model's own attention.",
  series: "The same prompts at every checkpoint.",
  lengths: "The command that repeats it. What was measured before is not measured again.",
  atlas: "The command that repeats it; the list of models stands beside the data.",
};

export function provenance(source) {
  const { about } = source;
  const table = about.sensitivity;
  const shown = panel(
    "provenance",
    "How this was measured",
    HINTS[source.type],
    table ? { csv: () => csvFile(`${source.name}-sensitivity`, flat(table)) } : {},
  );
  const all = JSON.stringify({ command: source.command, ...about }, null, 1);
  const copy = h("button", { type: "button", onclick: () => copyText(all, copy) }, "Copy all");
  const checks = about.self_check
    ? `Self-check: within ${Math.max(...Object.values(about.self_check)).toExponential(0)} of the model's own attention.`
    : "";
  const swaps = about.swaps
    ? ` Swaps were sampled: ${about.swaps.run} of ${about.swaps.of} were run, those not run hold ${number(about.swaps.unseen_weight)} of the weight.`
    : "";
  const left =
    about.left_out && (about.left_out.statements || about.left_out.swaps)
      ? ` Left out: ${about.left_out.statements} of ${about.left_out.of_statements} statements (other lengths), ${about.left_out.swaps} of ${about.left_out.of_swaps} swaps (no attention to move).`
      : "";
  const sinks = about.sinks ? ` Sinks draw ${number(100 * about.sinks.share, 0)} % of all attention.` : "";
  const right = about.accuracy ? ` Right answers: ${about.accuracy.right} of ${about.accuracy.of}.` : "";
  shown.body.append(
    h("div", { class: "command" }, h("code", {}, source.command), copy),
    h("p", {}, `${checks}${swaps}${left}${sinks}${right}`.trim()),
  );
  if (table) shown.body.append(sensitivity(table));
  shown.body.append(
    h("details", {}, h("summary", {}, "Settings, hashes and versions"), h("pre", { tabindex: 0 }, all)),
  );
  return { ...shown, draw() {}, mark() {}, light() {} };
}

const flat = (table) =>
  table.map(({ median_positional: [a, b], median_symbolic: [c, d], ...rest }) => ({
    ...rest,
    median_positional_early: a,
    median_positional_late: b,
    median_symbolic_early: c,
    median_symbolic_late: d,
  }));

/** The same prompts with other choices; the first row is the profile. */
function sensitivity(table) {
  const titles = [
    "blocks",
    "tokens a block",
    "tau",
    "r",
    "median positional, early / late layers",
    "median symbolic, early / late",
  ];
  const line = (row, at) =>
    h(
      "tr",
      { "aria-current": at ? null : "true" },
      ...[
        row.blocks,
        row.tokens_a_block,
        row.tau,
        number(row.r),
        row.median_positional.map((value) => number(value)).join(" / "),
        row.median_symbolic.map((value) => number(value)).join(" / "),
      ].map((text) => h("td", {}, String(text))),
    );
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sensitivity" },
    h(
      "table",
      {},
      h(
        "caption",
        {},
        "What the scores depend on: the temperature tau of the weights over swaps, and the cut of the blocks. The first row is this profile.",
      ),
      h("thead", {}, h("tr", {}, ...titles.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, ...table.map(line)),
    ),
  );
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.body.appendChild(h("textarea", { class: "unseen" }, text)); // pages from disk may not use the clipboard
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy all"), 1500);
}
