// Keep what is shown: an offline page, lines of Python, a file of prompts, the address.

import { live, promptOf } from "./live-state.js";
import { writeHash, store } from "./store.js";
import { copyText, download, h } from "./ui.js";

export function keepBar(ask, say) {
  const lines = { prompt: [], ablation: null, jsonl: "" };
  const prompts = [];
  const save = h("button", { type: "button", onclick: savePage }, "save page");
  const python = h("button", { type: "button", onclick: () => copyText((lines.ablation ?? lines.prompt).join("\n"), python) }, "copy as Python");
  const add = h("button", { type: "button", onclick: addPrompt }, "add to prompts");
  const file = h("button", { type: "button", hidden: true, onclick: () => download({ name: "prompts.jsonl", type: "application/jsonl", content: prompts.map((line) => `${line}\n`).join("") }) }, "");
  const link = h("button", { type: "button", onclick: () => copyText(location.href, link) }, "copy link");

  async function savePage() {
    save.disabled = true;
    say("Measuring the same prompt with other temperatures and blocks, for the saved page …");
    try {
      const view = writeHash({ ...store.state, live: null }).slice(1);
      const made = await ask("save", { ...promptOf(live()), view });
      if (made) {
        download({ name: made.name, type: "text/html", content: made.html });
        say(`Saved as ${made.name}: a self-contained file.`);
      }
    } catch (error) {
      say(error.message, true);
    }
    save.disabled = false;
  }

  function addPrompt() {
    if (prompts.includes(lines.jsonl)) return say("This prompt is in the list already.");
    prompts.push(lines.jsonl);
    file.hidden = false;
    file.textContent = `download prompts.jsonl (${prompts.length})`;
    say(`${prompts.length} prompts: measure them with wherewhat profile MODEL --task prompts.jsonl`);
  }

  return {
    element: h("div", { class: "picks keep" }, save, python, add, file, link),
    /** The lines that repeat the prompt, or the ablation that was shown last. */
    know(found) {
      Object.assign(lines, { ablation: null }, found);
      python.disabled = !lines.prompt.length;
      add.disabled = !lines.jsonl;
    },
  };
}
