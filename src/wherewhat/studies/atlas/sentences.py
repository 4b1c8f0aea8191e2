"""An atlas summarised in sentences, written from its tables."""

from __future__ import annotations

from collections import Counter

from ...core.kinds import LITTLE
from ...words import count, signed
from ..profile.roles import rests_on_little
from ..stats import EXCLUDES
from .result import Atlas


def atlas_sentences(atlas: Atlas) -> list[str]:
    """The share of heads of each kind, in how many models the two scores exclude each other, and what is missing.

    >>> atlas_sentences(Atlas.load("atlas"))                          # doctest: +SKIP
    ['346 heads of 3 models in 2 families: 62 % look at where (positional), 8 % at what (symbolic), 30 % are mixed.',
     'The two scores exclude each other in 3 of 3 models (r from -0.99 to -0.71).']
    """
    models, kinds = atlas.models, Counter(atlas.heads["kind"])
    shares = {name: f"{100 * number / len(atlas.heads):.0f} %" for name, number in kinds.items()}
    families = len(set(models["family"]))
    shown = f"{len(atlas.heads):,} heads of {count(len(models), 'model')}"
    shown += f" in {families} families" if families > 1 else ""
    shown += (
        f": {shares.get('where', '0 %')} look at where (positional), {shares.get('what', '0 %')} at what (symbolic)"
    )
    shown += "".join(f", {shares[name]} are {name}" for name in ("unfocused", "mixed", "unmeasured") if name in shares)
    sentences = [f"{shown}."]
    if "on_blocks" in atlas.heads and (little := int(rests_on_little(atlas.heads).sum())):
        share = f"{100 * little / len(atlas.heads):.0f} %"
        sentences.append(f"{share} rest on little attention: less than {100 * LITTLE:g} % of it is on the blocks.")
    r = sorted(models["r"].dropna())
    if r:
        reach = f"r from {signed(r[0])} to {signed(r[-1])}" if len(r) > 1 else f"r = {signed(r[0])}"
        excluding = sum(value <= EXCLUDES for value in r)
        sentences.append(f"The two scores exclude each other in {excluding} of {count(len(r), 'model')} ({reach}).")
    if atlas.failed:
        sentences.append(f"{count(len(atlas.failed), 'model')} could not be measured.")
    return sentences
