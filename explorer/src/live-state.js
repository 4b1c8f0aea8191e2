// The part of the state that the live page adds: the prompt, its query and blocks, and the ablation.

import { change, store } from "./store.js";

const NOTHING = { text: "", ids: null, query: null, blocks: "auto", answer: null, choose: "", how: "zero", draw: 0 };

export const live = () => ({ ...NOTHING, ...store.state.live });

/** Change the prompt or the ablation; what equals the default is left out of the address. */
export function changeLive(part, rest = {}) {
  const next = { ...live(), ...part };
  const kept = Object.entries(next).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(NOTHING[name]));
  change({ ...rest, live: kept.length ? Object.fromEntries(kept) : null });
}

/** Another prompt: nothing of the old one remains but the way in which blocks are proposed. */
export function newPrompt(part) {
  const { blocks } = live();
  const fresh = { text: "", ids: null, query: null, answer: null, blocks: typeof blocks === "string" ? blocks : "auto" };
  changeLive({ ...fresh, ...part }, { swap: null });
}

/** What the server needs to know of the prompt. Of the blocks that were drawn, those before the query count. */
export function promptOf({ text, ids, query, blocks, answer }) {
  const before = typeof blocks === "string" || query === null ? blocks : blocks.filter(([, stop]) => stop <= query);
  const tooFew = before.length < 2 && before.length < blocks.length;
  return { ...(ids ? { ids } : { text }), query, blocks: tooFew ? "auto" : before, answer };
}
