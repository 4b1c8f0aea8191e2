"""Models inside nnsight and TransformerLens, against the same model bare; `make integrations` runs these."""

from __future__ import annotations

import pytest
import torch

import wherewhat as ww
from conftest import needed, weights

pytestmark = [pytest.mark.integrations, pytest.mark.weights]
IDS = torch.randint(3, 30000, (1, 25), generator=torch.Generator().manual_seed(0))


def test_nnsight_models_are_measured_and_gated_as_the_bare_model(stories15m):
    nnsight = needed("nnsight")
    expected = ww.score(ww.capture(stories15m, IDS))
    path = str(weights("stories15M"))
    for model in (nnsight.NNsight(stories15m), nnsight.LanguageModel(path, dispatch=True)):
        found = ww.score(ww.capture(model, IDS))
        assert torch.equal(found.positional, expected.positional)
        assert torch.equal(found.symbolic, expected.symbolic)
        with torch.no_grad(), ww.gate(model, ablate=[(1, None)]), model.trace(IDS):
            gated = model.lm_head.output.save()
        with torch.no_grad(), ww.gate(stories15m, ablate=[(1, None)]):
            torch.testing.assert_close(gated, stories15m(IDS).logits)
    with pytest.raises(ww.BadInput, match="has not loaded its weights yet: give it dispatch=True"):
        ww.capture(nnsight.LanguageModel(path, tokenizer=ww.load_tokenizer(path)), IDS)


def test_a_bridge_of_transformer_lens_is_refused_with_what_to_pass_instead():
    bridges = needed("transformer_lens.model_bridge")
    path = str(weights("stories15M"))
    model = ww.load(path)
    bridge = bridges.TransformerBridge.boot_transformers(path, hf_model=model, tokenizer=ww.load_tokenizer(path))
    with pytest.raises(ww.NotMeasurable, match=rf'pass a fresh Hugging Face model, ww.load\("{path}"\)'):
        ww.capture(bridge, IDS)
    with pytest.raises(ww.NotMeasurable, match="PositionEmbeddingsAttentionBridge"):  # booting changed it, too
        ww.capture(model, IDS)
