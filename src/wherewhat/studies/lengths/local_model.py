"""Answers as text from a Hugging Face model on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ...prompts.chat import in_chat
from ...prompts.one_hop import Question
from ...prompts.prompt import tokenize
from ...tracing.fingerprint import model_hash
from ...tracing.offload import entry_device
from ...tracing.self_check import stated_context
from .answers import NEW_TOKENS, Keep, Reply

TOKENS_PER_PASS = 4096  # bounds the memory
TokenizedQuestion = tuple[list[int], Question]


class LocalModel:
    """A model with its tokenizer: greedy answers in batches, in the chat template if there is one.

    >>> LocalModel(ww.load(path), ww.load_tokenizer(path)).ask(questions, print)       # doctest: +SKIP
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any) -> None:
        self.model, self.tokenizer, self.context = model, tokenizer, stated_context(model)
        self.chat = bool(getattr(tokenizer, "chat_template", None))
        own = model.generation_config or GenerationConfig()
        ends = tokenizer.eos_token_id if own.eos_token_id is None else own.eos_token_id
        self.ends: list[int] = [] if ends is None else ends if isinstance(ends, list) else [ends]
        words = hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
        template = tokenizer.chat_template if self.chat else ""
        self.weights = model_hash(model)
        self.identity = f"{self.weights} {words} {template} {self.ends} {NEW_TOKENS}"
        self.greedy = GenerationConfig(
            do_sample=False, num_beams=1, max_new_tokens=NEW_TOKENS, eos_token_id=self.ends or None,
            pad_token_id=(self.ends or [0])[0],
        )  # fmt: skip

    def ask(self, questions: Sequence[Question], keep: Keep) -> None:
        fitting: list[TokenizedQuestion] = []
        for question in questions:
            ids = self.ids(question)
            if self.context is not None and len(ids) + NEW_TOKENS > self.context:
                keep(question, Reply(None, len(ids)))
            else:
                fitting.append((ids, question))
        # Batches of one length and one task need no padding, which could change answers, and share their first tokens.
        fitting.sort(key=_alike)
        for _, group in groupby(fitting, key=_alike):
            asked = list(group)
            at_once = max(1, TOKENS_PER_PASS // len(asked[0][0]))
            for batch in (asked[first : first + at_once] for first in range(0, len(asked), at_once)):
                for (_, question), reply in zip(batch, self.generate([ids for ids, _ in batch]), strict=True):
                    keep(question, reply)

    def ids(self, question: Question) -> list[int]:
        """The tokens of a question as the model reads it."""
        text = in_chat(self.tokenizer, question.messages, enable_thinking=False) if self.chat else question.prompt
        return tokenize(self.tokenizer, text, special=not self.chat)[0]

    def generate(self, prompts: Sequence[list[int]]) -> list[Reply]:
        """Greedy continuations of prompts of equal length; tokens that all of them begin with are processed once."""
        model: Any = self.model
        ids = torch.tensor(prompts, device=entry_device(model))
        shared = int((ids[:, :-1] == ids[:1, :-1]).all(0).long().cumprod(0).sum())
        cache = self._shared_cache(ids[:1, :shared], len(prompts)) if shared and len(prompts) > 1 else None
        # The model's own generation settings, such as a ban on repetition, would change the answers.
        own, model.generation_config = model.generation_config, GenerationConfig()
        try:
            made = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=self.greedy, past_key_values=cache
            )
        finally:
            model.generation_config = own
        new = made[:, ids.shape[1] :].cpu()
        ended = torch.isin(new, torch.tensor(self.ends, dtype=new.dtype)).long()
        counts = (ended.cumsum(1) == ended).sum(1).tolist()  # up to and including the first end token
        written = [row[:count] for row, count in zip(new, counts, strict=True)]
        texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
        return [Reply(text, ids.shape[1], count) for text, count in zip(texts, counts, strict=True)]

    def _shared_cache(self, start: Int[Tensor, "1 T"], times: int) -> DynamicCache | None:
        """The keys and values of the shared first tokens, repeated; None for models whose cache holds anything else."""
        cache = DynamicCache(config=self.model.config)
        if self.model._is_stateful or not all(type(layer) is DynamicLayer for layer in cache.layers):
            return None
        with torch.no_grad():
            self.model(input_ids=start, past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(times)
        return cache if cache.get_seq_length() == start.shape[1] else None


def _alike(asked: TokenizedQuestion) -> tuple[int, str]:
    return len(asked[0]), asked[1].task
