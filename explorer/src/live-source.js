// The heads on a prompt that is being measured: until everything has arrived, what is not known yet is missing.

import { Source } from "./source.js";

export class LiveSource extends Source {
  /** A named array; NaN for numbers that are still being computed. */
  array(name) {
    const each = name.startsWith("frequency_") ? (this.frequencies?.length ?? 0) : 1;
    return this.has(name) ? super.array(name) : this.once(name, () => new Float64Array(this.count * each).fill(NaN));
  }

  along(name, head) {
    return this.frequencies ? super.along(name, head) : new Float64Array(0);
  }

  /** The table of swaps, as soon as it is there: until then figures of swaps stay as they are. */
  placement(head) {
    return this.has("mass") ? super.placement(head) : new Promise(() => {});
  }
}
