// What turning a head off does to each measure, where that was measured.

import { number } from "./ui.js";

/** The measure that cells are coloured by. */
export const chosenMeasure = (source, state) =>
  source.effects.measures.find(({ name }) => name === state.measure) ?? source.effects.measures.at(-1);

/** How much worse a head's absence makes every head's measure; less than nothing is better. */
export const harm = (source, { name, better }, what = "change") =>
  source.once(`harm ${name} ${what}`, () =>
    source.array(`${name}_${what}`).map((change) => (better ? -change : change)),
  );

/** Whether the change is told from that of as many at random. */
export const counts = (source, { name }, at) =>
  source.array(`${name}_against_low`)[at] > 0 || source.array(`${name}_against_high`)[at] < 0;

export const signed = (value) => `${value > 0 ? "+" : ""}${number(value, 3)}`;

export function effectLine(source, at, state) {
  if (!source.effects || state.cells !== "ablation") return [];
  const { name, words } = chosenMeasure(source, state);
  return [`without it, ${words}: ${signed(source.array(`${name}_change`)[at])}`];
}
