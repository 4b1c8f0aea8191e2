// A result as typed arrays. Numbers come as base64 and are decoded on first use.

import { median, quantileSorted } from "d3-array";

const KINDS = { f8: Float64Array, f4: Float32Array, f2: Uint16Array, i4: Int32Array, u2: Uint16Array, u1: Uint8Array };

export const decode = ({ type, base64 }) => new KINDS[type](bytesOf(base64).buffer);

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

/** An array of numbers of two bytes that is compressed, all low bytes before all high bytes. */
export async function inflated({ type, deflate }) {
  const stream = new Blob([bytesOf(deflate)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = bytes.length / 2;
  const numbers = new KINDS[type](count);
  for (let at = 0; at < count; at++) numbers[at] = bytes[at] | (bytes[count + at] << 8);
  return numbers;
}

/** The number that sixteen bits represent. */
export function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

export class Source {
  constructor(given) {
    this.renew(given);
  }

  /** Take other numbers, of the same heads. */
  renew(given) {
    Object.assign(this, given);
    this.count = this.labels.length;
    this.places = new Map(this.labels.map((label, at) => [label, at]));
    this.kept = new Map();
    this.row = this.array("row");
    this.head = this.array("head");
    this.byRow = this.layers.map(() => []);
    this.row.forEach((row, at) => this.byRow[row].push(at));
    this.width = Math.max(...this.byRow.map((heads) => heads.length));
  }

  /** A named array, decoded once. */
  array(name) {
    return this.once(name, () => decode(this.arrays[name]));
  }

  has(name) {
    return name in this.arrays;
  }

  once(key, make) {
    if (!this.kept.has(key)) this.kept.set(key, make());
    return this.kept.get(key);
  }

  /** The checkpoint shown at a step of training: the last one that is not after it. */
  at({ step }) {
    if (!this.steps) return 0;
    if (step === null) return this.steps.length - 1;
    const later = this.steps.findIndex((one) => one > step);
    return later < 0 ? this.steps.length - 1 : Math.max(0, later - 1);
  }

  /** The values of a column for every head, at the selected step and frequency. */
  values(name, state) {
    const frequency = this.frequencyAt(state);
    if (frequency >= 0 && (name === "positional" || name === "symbolic")) {
      return this.once(`${name} ${frequency}`, () => {
        const all = this.array(`frequency_${name}`);
        return Float64Array.from(this.labels, (_, head) => all[head * this.frequencies.length + frequency]);
      });
    }
    const all = this.array(name);
    return this.steps ? all.subarray(this.at(state) * this.count, (this.at(state) + 1) * this.count) : all;
  }

  frequencyAt({ frequency }) {
    return frequency === null || !this.frequencies ? -1 : this.frequencies.indexOf(frequency);
  }

  /** The numbers of a head at all frequencies, or at all steps. */
  along(name, head) {
    if (!this.steps) {
      const size = this.frequencies.length;
      return this.array(`frequency_${name}`).subarray(head * size, (head + 1) * size);
    }
    return this.steps.map((_, at) => this.array(name)[at * this.count + head]);
  }

  kind(positional, symbolic) {
    const { high, low } = this.thresholds;
    if (Number.isNaN(positional) || Number.isNaN(symbolic)) return "unmeasured";
    if (positional >= high && symbolic <= low) return "where";
    if (symbolic >= high && positional <= low) return "what";
    return positional >= high && symbolic >= high ? "unfocused" : "mixed";
  }

  kindOf(at, state) {
    return this.kind(this.values("positional", state)[at], this.values("symbolic", state)[at]);
  }

  kinds(state) {
    return this.labels.map((_, at) => this.kindOf(at, state));
  }

  /** The attention that the content of every block (rows) would receive at the position of every block (columns). */
  async placement(head) {
    const size = this.table.length; // before waiting: the numbers may be renewed meanwhile
    const logs = await this.once("mass", () => inflated(this.arrays.mass));
    return { size, mass: (content, place) => Math.exp(half(logs[(head * size + content) * size + place])) };
  }
}

/** Lower quartile, median and upper quartile of all numbers but NaN. */
export function quartiles(values) {
  const sorted = Float64Array.from(values)
    .filter((value) => !Number.isNaN(value))
    .sort();
  return [0.25, 0.5, 0.75].map((part) => (sorted.length ? quantileSorted(sorted, part) : NaN));
}

export const middle = (values) => median(values) ?? NaN;

/** Attention on every block before and after the contents of blocks i and j are swapped. */
export function swapped({ size, mass }, i, j) {
  const before = Array.from({ length: size }, (_, block) => mass(block, block));
  const all = 1 - before[i] - before[j] + mass(j, i) + mass(i, j);
  const after = before.map((value) => value / all);
  after[i] = mass(j, i) / all;
  after[j] = mass(i, j) / all;
  const was = [before[i], before[j]];
  const is = [after[i], after[j]];
  return { before, after, stays: cosine(is, was), follows: cosine(is, [was[1], was[0]]) };
}

function cosine([a, b], [c, d]) {
  const [m, n] = [Math.max(a, b), Math.max(c, d)];
  const [x, y, z, w] = [a / m, b / m, c / n, d / n];
  return (x * z + y * w) / Math.sqrt((x * x + y * y) * (z * z + w * w));
}
