"""What the page may ask, and the answers: each takes the model and the JSON of a request, and returns JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, cast

import torch

from ..core.kinds import HIGH, LITTLE, LOW
from ..core.scores import block_index
from ..errors import BadInput
from ..explorer.data import encoded, profile_data
from ..explorer.page import explorer_html
from ..prompts import Prompt, binding, plain_text, repeats
from ..prompts.multihop import multihop
from ..prompts.text import included_story
from ..studies.profile.attention import attention_shares, fixed_point, stacked_layers
from .ablation import ablate, with_ablation
from .live import Asked, LiveModel
from .reader import SymbolReader, TextReader

MOST_NEW_TOKENS = 64
MOST_PAIRS = 64


def measure(live: LiveModel, given: dict[str, Any]) -> dict[str, Any]:
    """What is painted first: the tokens, the blocks, the two scores of every head, its attention, the next tokens."""
    started, before, asked = time.perf_counter(), live.passes, live.read(given)
    trace = live.trace(asked)
    rows, scores, note = live.seen(asked, trace)
    there = ~rows[..., 0].isnan()
    numbers = there.nonzero()
    runs = {number: trace.layers[:number].count(layer) for number, layer in enumerate(trace.layers)}
    labels = [
        f"{trace.layers[row]}.{head}" + (f"-{runs[row] + 1}" if runs[row] else "") for row, head in numbers.tolist()
    ]
    arrays: dict[str, Any] = {"row": numbers[:, 0].int(), "head": numbers[:, 1].int()}
    if scores:
        target = live.target(asked, trace)
        shares = attention_shares(rows, asked.blocks, target, None)
        scores |= {name: shares[name] for name in ("on_blocks", "answer_chance")} | {"answer": shares["answer_block"]}
        arrays |= {name: values[there].double() for name, values in scores.items()}
    arrays["token_attention"] = fixed_point(rows[there])
    assert trace.output is not None
    return {
        "tokens": asked.tokens,
        "ids": asked.ids,
        "text": asked.text,
        "query": asked.query,
        "blocks": asked.blocks,
        "cut": asked.cut,
        "answer": asked.answer,
        "next": live.next_tokens(trace.output[0], asked.answer),
        "note": note,
        "labels": labels,
        "layers": trace.layers,
        "thresholds": {"high": HIGH, "low": LOW, "on_blocks": LITTLE},
        "arrays": {name: encoded(values.cpu().numpy()) for name, values in arrays.items()},
        "passes": live.passes - before,
        "seconds": time.perf_counter() - started,
    }


def details(live: LiveModel, given: dict[str, Any]) -> dict[str, Any]:
    """Everything that the page shows of a profile, for this prompt: frequencies, the table of swaps, provenance."""
    asked = live.read(given)
    data = profile_data(live.profile(asked), live.name)
    data["warnings"] = [warning for warning in data["warnings"] if not warning.startswith("a single prompt")]
    return data | {"python": live.python(asked), "jsonl": jsonl(live, asked)}


def swap(live: LiveModel, given: dict[str, Any]) -> dict[str, Any]:
    """The attention of every head on every token after two blocks are swapped, read from the placement tables."""
    asked = live.read(given)
    pair = given.get("swap")
    most = len(asked.blocks)
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(one) is int and 0 <= one < most for one in pair):
        raise BadInput(f"a swap is a pair of blocks from 0 to {most - 1}, got {pair!r:.40}")
    before, trace = live.passes, live.trace(asked)
    index = block_index(asked.blocks, trace.keys).to(live.device)
    first, second = index[pair[0]], index[pair[1]]
    rows = stacked_layers(trace, lambda layer: trace.placements(layer).swapped_attention(first, second))
    after = fixed_point(rows[~rows[..., 0].isnan()])
    return {"swap": pair, "arrays": {"token_attention": encoded(after.numpy())}, "passes": live.passes - before}


def continued(live: LiveModel, given: dict[str, Any]) -> dict[str, Any]:
    """What the model writes next, token by token the most probable one, as it is or with an ablation."""
    asked, number = live.read(given), given.get("number", 16)
    if type(number) is not int or not 1 <= number <= MOST_NEW_TOKENS:
        raise BadInput(f"a continuation has 1 to {MOST_NEW_TOKENS} tokens, got {number!r:.40}")
    room = live.context - len(asked.ids)
    if room < 1:
        raise BadInput(f"the prompt fills the context of {live.context:,} tokens: nothing can follow it")
    ids = torch.tensor([asked.ids], device=live.device)
    eos = live.model.generation_config.eos_token_id if live.model.generation_config else None
    with with_ablation(live, asked, given), torch.no_grad():
        written = cast(Any, live.model).generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=min(number, room), do_sample=False,
            pad_token_id=eos[0] if isinstance(eos, list) else eos,
        )  # fmt: skip
    new = written[0, len(asked.ids) :].tolist()
    return {"ids": new, "text": live.reader.decode(new)}


def example(live: LiveModel, given: dict[str, Any]) -> dict[str, Any]:
    """A prompt that is made for the model: as a text if it reads the same tokens from it, else as token ids."""
    name, seed, pairs = given.get("name"), given.get("seed", 0), given.get("pairs", 8)
    if type(seed) is not int or not 0 <= seed < 2**31 or type(pairs) is not int or not 2 <= pairs <= MOST_PAIRS:
        raise BadInput(f"an example has a seed from 0 and 2 to {MOST_PAIRS} pairs, got {seed!r:.40} and {pairs!r:.40}")
    if name == "chat":
        message = given.get("message")
        if not isinstance(message, str):
            raise BadInput("a chat needs a message")
        return {"text": live.reader.chat(message), "blocks": "auto", "answer": None}
    prompt = _made(live, str(name), seed, pairs)
    found = {"blocks": prompt.blocks, "answer": prompt.answer}
    if tuple(live.reader.read(prompt.text)[0]) == prompt.ids:
        return found | {"text": prompt.text}
    return found | {"ids": prompt.ids}


def examples(live: LiveModel) -> list[str]:
    """The names of the examples that this model has."""
    if isinstance(live.reader, SymbolReader):
        return [live.reader.task]
    return ["binding", "owner", "repeats", "prose"]


def _made(live: LiveModel, name: str, seed: int, pairs: int) -> Prompt:
    if name not in examples(live):
        raise BadInput(f"no example {name!r:.40}: {', '.join(examples(live))}")
    if isinstance(live.reader, SymbolReader):
        return multihop(name, samples=1, seed=seed)[0]
    assert isinstance(live.reader, TextReader)
    tokenizer = live.reader.tokenizer
    if name == "repeats":
        return repeats(tokenizer, tokens=min(4 * pairs, live.most_tokens // 2 - 2), samples=1, seed=seed)[0]
    if name == "prose":
        made = plain_text(tokenizer, included_story(), width=4, tokens=min(64, live.most_tokens), samples=8)
        return made[seed % len(made)]
    template = "plain" if name == "binding" else name
    return binding(tokenizer, pairs=pairs, samples=1, seed=seed, template=template)[0]


def jsonl(live: LiveModel, asked: Asked) -> str:
    """The prompt as a line of a file that `wherewhat profile --task` takes."""
    ids = asked.ids[: asked.query + 1]
    line: dict[str, Any] = {"ids": ids, "blocks": asked.blocks}
    if asked.answer is not None and asked.query == len(asked.ids) - 1:
        line["answer"] = asked.answer
    return json.dumps(line)


def save(live: LiveModel, given: dict[str, Any]) -> dict[str, Any]:
    """The same view as a self-contained page, with what a profile adds: other temperatures and other blocks."""
    view = given.get("view", "")
    if not isinstance(view, str) or len(view) > 10_000:
        raise BadInput("view is the state of the page, as in its address")
    profile = live.profile(live.read(given), thorough=True)
    return {"name": f"{live.name}.html", "html": explorer_html([profile], [live.name], view=view)}


ANSWERS: dict[str, Callable[[LiveModel, dict[str, Any]], dict[str, Any]]] = {
    "measure": measure,
    "run": measure,  # of the swapped text, which leaves the other work of the page alone
    "details": details,
    "swap": swap,
    "ablate": ablate,
    "continue": continued,
    "example": example,
    "save": save,
}
