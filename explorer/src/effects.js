// The effect of ablating a head on each measure, if it was measured.

import { number } from "./ui.js";

/** The measure that colours the cells. */
export const chosenMeasure = (source, state) =>
  source.effects.measures.find(({ name }) => name === state.measure) ?? source.effects.measures.at(-1);

/** How much worse a measure becomes when each head is ablated; below 0 it becomes better. */
export const harm = (source, { name, better }, what = "change") =>
  source.once(`harm ${name} ${what}`, () =>
    source.array(`${name}_${what}`).map((change) => (better ? -change : change)),
  );

/** Whether the change differs from that of random heads: its interval excludes 0. */
export const counts = (source, { name }, at) =>
  source.array(`${name}_against_low`)[at] > 0 || source.array(`${name}_against_high`)[at] < 0;

export const signed = (value) => `${value > 0 ? "+" : ""}${number(value, 3)}`;

export function effectLine(source, at, state) {
  if (!source.effects || state.cells !== "ablation") return [];
  const { name, words } = chosenMeasure(source, state);
  return [`ablating it changes ${words} by ${signed(source.array(`${name}_change`)[at])}`];
}
