"""Any task of lm-evaluation-harness with heads or frequencies of the model ablated.

`python -m wherewhat.harness` is the command `lm_eval` with one more model, `--model wherewhat`; in Python, `register()`
adds it, and `lm_eval.simple_evaluate(model="wherewhat", ...)` takes it.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import BadInput, NotMeasurable
from .prompts.text import included_story, plain_text
from .studies.ablation.ablate import check_ablation
from .studies.ablation.selections import check_profile, hash_of, head_set_of, select, select_heads
from .studies.profile.result import Profile
from .tracing.gate import gate
from .tracing.load import load, load_tokenizer
from .tracing.windows import RECENT, SINK

NAME = "wherewhat"
NEEDED = "0.4.13"
STRETCHES, TOKENS = 3, 128  # of the story over which mean ablation averages


def register() -> Any:
    """Add the model `wherewhat` to lm_eval, and return its class.

    It takes the arguments of lm_eval's `hf`, and `heads`, `drop`, `keep`, `freeze` and `stream` in the words of
    `ww.ablate`, but with spaces or semicolons between heads: lm_eval splits its arguments at commas. Heads with scores
    need `profile`, a folder. `ablation` is "mean" (over a story) or "zero"; `sink` and `recent` are the window of heads
    that stream. `pretrained` may also be a .gguf file.
    """
    try:
        from lm_eval.api.registry import model_registry, register_model  # pyright: ignore[reportMissingImports]
        from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise BadInput(
            f"lm_eval {NEEDED} or newer is needed ({error}): pip install 'wherewhat[integrations]'"
        ) from error
    if NAME in model_registry:
        return model_registry.get(NAME)

    @register_model(NAME)
    class AblatedLM(HFLM):
        def __init__(
            self,
            pretrained: Any,
            *,
            heads: Any = None,
            drop: Any = None,
            keep: Any = None,
            freeze: Any = None,
            stream: Any = None,
            sink: int = SINK,
            recent: int = RECENT,
            ablation: str = "mean",
            profile: str | None = None,
            **rest: Any,
        ) -> None:
            check_ablation(ablation)
            if str(pretrained).endswith(".gguf"):
                rest.setdefault("tokenizer", load_tokenizer(pretrained))
                pretrained = load(pretrained)
            super().__init__(pretrained, **rest)
            given = None if profile is None else Profile.load(profile)
            weights = hash_of(self.model) if given is None else check_profile(given, self.model)
            words = {"ablate": heads, "drop": drop, "keep": keep, "freeze": freeze, "stream": stream}
            chosen = {how: _chosen(how, some, given, weights) for how, some in words.items() if some is not None}
            if not chosen and given is not None:
                raise BadInput("profile is given, but nothing to ablate: heads, drop, keep, freeze or stream")
            average = _story(self.tokenizer).to(self.device) if "ablate" in chosen and ablation == "mean" else None
            self.gates = ExitStack()
            if chosen:
                self.gates.enter_context(gate(self.model, **chosen, mean_of=average, sink=sink, recent=recent))

        def close(self) -> None:
            """Restore the model."""
            self.gates.close()

    return AblatedLM


def _chosen(how: str, words: Any, given: Profile | None, weights: str) -> Any:
    """Heads and frequencies from words, as lm_eval has parsed them."""
    if not isinstance(words, str):  # 3.10 became the number 3.1
        raise BadInput(f"lm_eval reads {words!r} as a number: write a semicolon after it, as in heads='3.1;'")
    if (named := head_set_of(words)) is not None:
        named.check(weights)
    return (select_heads if how in ("ablate", "stream") else select)(words, given)


def _story(tokenizer: Any) -> Tensor:
    prompts = plain_text(tokenizer, included_story(), tokens=TOKENS, samples=STRETCHES)
    return torch.tensor([prompt.ids for prompt in prompts])


def main() -> None:
    """Run the command of lm_eval; errors of this package are one line."""
    try:
        register()
        from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

        sys.argv[0] = str(Path(sys.argv[0]).with_name("lm_eval"))
        cli_evaluate()
    except (BadInput, NotMeasurable) as error:
        sys.exit(f"wherewhat: {error}")


if __name__ == "__main__":
    main()
