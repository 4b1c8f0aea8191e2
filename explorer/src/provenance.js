// How a result was measured: everything needed to repeat it.

import { copyText, csvFile, h, number, panel, percent } from "./ui.js";

const HINTS = {
  profile:
    "The command that repeats the measurement, the settings that matter, and the deviation from the model's own attention.",
  series: "The same prompts at every checkpoint.",
  lengths: "The command that repeats the measurement; existing results are reused.",
  atlas: "The command that repeats the measurement; the list of models is stored beside the data.",
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
    ? ` Swaps were sampled: ${about.swaps.run} of ${about.swaps.of} were run; the others carry ${number(about.swaps.unseen_weight)} of the weight.`
    : "";
  const left =
    about.skipped && (about.skipped.statements || about.skipped.swaps)
      ? ` Skipped: ${about.skipped.statements} of ${about.skipped.of_statements} statements (different length), ${about.skipped.swaps} of ${about.skipped.of_swaps} swaps (neither block receives attention).`
      : "";
  const sinks = about.sinks ? ` ${sinkWords(about.sinks, source.criteria)}` : "";
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

/** The same prompts with other settings; the first row is the profile. */
function sensitivity(table) {
  const titles = [
    "blocks",
    "tokens per block",
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
        row.tokens_per_block,
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
        "How the scores depend on the temperature tau of the weights over swaps and on how the prompt is divided into blocks. The first row is this profile.",
      ),
      h("thead", {}, h("tr", {}, ...titles.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, ...table.map(line)),
    ),
  );
}

/** How much attention goes to sinks, and what counts as one. */
function sinkWords({ share }, { drawn, sink_heads }) {
  const what = `tokens before the blocks on which at least ${percent(sink_heads)} of heads put at least ${percent(drawn)} of their attention`;
  return share ? `Sinks (${what}) receive ${percent(share)} of all attention.` : `There are no sinks (${what}).`;
}
