// Where the attention on tokens comes from: arrays embedded in the page. Another data source has the same members.

import { inflated } from "./source.js";

/** The attention of every head on the tokens of some prompts. */
export class EmbeddedAttention {
  /**
   * `prompts` are {tokens, blocks, target, answer_at, says}. The last query of each is stored, and for the first prompt
   * the `top` keys with the most attention of each of its last `queries` queries.
   */
  constructor({ prompts, longest, queries, top, scale }, arrays) {
    Object.assign(this, { prompts, longest, queries, top, scale, arrays });
    this.kept = new Map();
  }

  /** Whether the attention of this query is known. */
  knows(prompt, query) {
    const last = this.prompts[prompt].tokens.length - 1;
    return query === last || (prompt === 0 && query <= last && query > last - this.queries);
  }

  /** The attention of a head from a query on every token, and whether it is complete or that of the strongest keys. */
  async weights(head, prompt, query) {
    const tokens = this.prompts[prompt].tokens.length;
    if (query === tokens - 1) {
      const start = (head * this.prompts.length + prompt) * this.longest;
      const stored = (await this.array("token_attention")).subarray(start, start + tokens);
      return { weights: Float32Array.from(stored, (units) => units / this.scale), complete: true };
    }
    const [keys, shares] = await Promise.all(["strongest_keys", "strongest_attention"].map((name) => this.array(name)));
    const start = ((head + 1) * this.queries - (tokens - query)) * this.top;
    const weights = new Float32Array(tokens);
    for (let at = start; at < start + this.top; at++) weights[keys[at]] += shares[at] / this.scale;
    return { weights, complete: query < this.top };
  }

  array(name) {
    if (!this.kept.has(name)) this.kept.set(name, inflated(this.arrays[name]));
    return this.kept.get(name);
  }
}
