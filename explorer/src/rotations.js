// A plan of rotations: which planes every key head keeps, and what their rotation does to attention.

import { max } from "d3-array";
import { heatmap } from "./heat.js";
import { change, selectedIn, store } from "./store.js";
import { count, number } from "./ui.js";

export function rotationPlan(source) {
  const ids = source.frequencies.filter((frequency) => frequency > 0);
  const size = source.frequencies.length;
  const keyHead = (at) => `${source.layers[source.row[at]]}.${source.kv_heads[at]}`;
  const members = new Map(); // the query heads of every key head
  source.labels.forEach((_, at) => members.set(keyHead(at), [...(members.get(keyHead(at)) ?? []), at]));
  const rows = [...members.keys()];
  const read = (name, row, column) => source.array(`rotation_${name}`)[members.get(rows[row])[0] * size + column];
  const largest = source.once("largest effect", () => max(source.array("rotation_effect")));
  const { keep, planes, budget, kept, kl, lengths } = source.plan;
  const spread = budget === "model" ? "spread over the whole model" : "in every key head";
  const at = ([length, value]) => `${number(value, 3)} at ${length} tokens`;
  const lost = kl ? ` KL to the unmodified model, in nats per token: ${Object.entries(kl).map(at).join(", ")}.` : "";
  return heatmap({
    id: "rotations",
    title: "Rotations to keep",
    name: source.name,
    modes: ["kept", "effect"],
    hint: (mode) =>
      mode === "kept"
        ? `${keep} of ${planes} rotations per key head, ${spread}: ${count(kept)} in all, calibrated on ${lengths.join(" and ")} tokens.${lost} Click a row to select its heads.`
        : "What the rotation does to attention: half the variance of logits that it causes, summed over the heads that share the keys; colours grow with the fourth root.",
    rows,
    columns: ids,
    rowTitle: "layer.key head",
    columnTitle: "frequency, fast to slow",
    value: (mode, row, column) =>
      mode === "kept" ? read("kept", row, column) : (read("effect", row, column) / largest) ** 0.25,
    now: () => source.frequencyAt(store.state),
    nowRow: () => {
      const at = selectedIn(source).at(-1);
      return at === undefined ? -1 : rows.indexOf(keyHead(at));
    },
    tips: (row, column) => {
      const [stays, effect] = [read("kept", row, column), read("effect", row, column)];
      const words = Number.isNaN(effect) ? "no such frequency" : `${stays ? "kept" : "dropped"} · effect ${effect.toPrecision(2)} nats`;
      return [`Key head ${rows[row]}, frequency ${ids[column]}`, words, `heads ${members.get(rows[row]).map((at) => source.labels[at]).join(", ")}`];
    },
    click: (row) => change({ heads: members.get(rows[row]).map((at) => source.labels[at]), swap: null }),
    csv: () =>
      rows.flatMap((_, row) =>
        ids.map((frequency, column) => ({
          layer: source.layers[source.row[members.get(rows[row])[0]]],
          kv_head: source.kv_heads[members.get(rows[row])[0]],
          frequency,
          effect: read("effect", row, column),
          kept: read("kept", row, column),
        })),
      ),
  });
}
