"""Attention in strips of queries, with soft-capping and learned sinks."""

from __future__ import annotations

import torch
from torch import Tensor


def strip_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    position_bias: Tensor | None = None,
    strip: int = 128,
) -> Tensor:
    """Attention for what sdpa lacks, one strip of queries at a time, never a full T x T matrix. Returns B T H D."""
    batch, heads, tokens, _ = query.shape
    groups = heads // key.shape[1]
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    outputs = []
    for start in range(0, tokens, strip):
        rows = slice(start, min(start + strip, tokens))
        logits = (query[:, :, rows] @ key.mT).float() * scaling
        if softcap is not None:
            logits = torch.tanh(logits / softcap) * softcap
        if position_bias is not None:
            logits = logits + position_bias[:, :, rows]
        if mask is None:
            places = torch.arange(tokens, device=query.device)
            logits = logits.masked_fill(places > places[rows, None], -torch.inf)
        elif mask.dtype == torch.bool:
            logits = logits.masked_fill(~mask[:, :, rows], -torch.inf)
        else:
            logits = logits + mask[:, :, rows]
        if sinks is not None:
            extra = sinks.float().reshape(1, -1, 1, 1).expand(batch, heads, logits.shape[2], 1)
            attention = torch.cat([logits, extra], dim=-1).softmax(-1)[..., :-1]
        else:
            attention = logits.softmax(-1)
        outputs.append(attention.to(value.dtype) @ value)
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()
