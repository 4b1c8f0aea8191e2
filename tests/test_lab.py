"""The lab's Transformer against Hugging Face's GPT-J, and runs that are killed against runs that are not."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close
from transformers import GPTJConfig, GPTJForCausalLM

import wherewhat as ww
from wherewhat.errors import BadInput
from wherewhat.lab import Recipe, Shape, Transformer, from_gptj, to_gptj, train_model
from wherewhat.lab.fused import float32_product
from wherewhat.lab.train import Dropout, Trainer, accuracy_by_hops, processor_threads
from wherewhat.tasks import TASKS, Number

SMALL = Shape(vocabulary=41, layers=3, heads=2, width=24, hidden=40)


def random_ids(vocabulary: int, tokens: int = 17) -> torch.Tensor:
    return torch.randint(vocabulary, (5, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "shape",
    [
        SMALL,
        replace(SMALL, gelu="none"),
        Shape(137),
        Shape(41, 2, 2, 32, 64, angles=tuple(10_000 ** (-k / 3) for k in range(3))),
    ],
)
def test_export_and_import_give_the_same_logits(shape: Shape) -> None:
    model = Transformer(shape, seed=3)
    for block in model.blocks:  # biases away from zero
        torch.nn.init.normal_(block.hidden_bias)
        torch.nn.init.normal_(block.hidden_out.bias)
    ids = random_ids(shape.vocabulary)
    with torch.no_grad():
        ours = model(ids)
        theirs = to_gptj(model)
        assert (theirs(ids).logits - ours).abs().max() < 1e-5
        assert (from_gptj(theirs)(ids) - ours).abs().max() < 1e-5


def test_import_of_a_gptj_made_by_hugging_face(tmp_path: Path) -> None:
    config = GPTJConfig(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=2, rotary_dim=8, bos_token_id=0)
    theirs = GPTJForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = from_gptj(GPTJForCausalLM.from_pretrained(tmp_path).eval())
    ids = random_ids(50)
    with torch.no_grad():
        assert (theirs(ids).logits - ours(ids)).abs().max() < 1e-5


def test_the_smallest_and_the_largest_recipe_that_are_accepted() -> None:
    smallest = Recipe(steps=1, batch=1)
    for less in ({"steps": 0}, {"batch": 0}, {"rate": 0.0}):
        with pytest.raises(BadInput, match="must be positive"):
            replace(smallest, **less)
    largest = Recipe(steps=10**8, batch=2**16)
    for more in ({"steps": 10**8 + 1}, {"batch": 2**16 + 1}):
        with pytest.raises(BadInput, match="at most 100,000,000 steps of 65,536"):
            replace(largest, **more)


def test_what_gptj_cannot_say_is_refused() -> None:
    for shape in (Shape(41, 2, still_from=1), Shape(41, 2, base=500.0), Shape(41, 2, angles=(0.8,))):
        with pytest.raises(BadInput, match="GPT-J supports only"):
            to_gptj(Transformer(shape))


def test_the_last_token_alone_is_what_all_tokens_give() -> None:
    model = Transformer(SMALL)
    with torch.no_grad():
        assert torch.allclose(model(random_ids(41), last=True), model(random_ids(41))[:, -1:], atol=1e-6)


@pytest.mark.parametrize(
    "shape", [SMALL, Shape(41, 3, 1, 24, 40, still_from=1), Shape(41, 2, 2, 24, 40, angles=(0.8,))]
)
def test_capture_gives_the_rows_of_the_model(shape: Shape) -> None:
    """Scores through capture, against softmax rows read off a plain forward pass with contents exchanged by hand."""
    model = Transformer(shape, seed=2)
    for value in model.parameters():
        value.data *= 4  # peaked heads
    ids = random_ids(41, 9)
    trace = ww.capture(model, ids)
    assert torch.allclose(trace.output, model(ids)[:, -1].detach(), atol=1e-4)
    for layer in range(shape.layers):
        assert torch.allclose(trace.attention_rows(layer), own_rows(model, ids, layer), atol=1e-5)


@pytest.mark.slow
def test_capture_agrees_with_the_exported_model() -> None:
    model = Transformer(Shape(137), seed=5)
    for value in model.parameters():
        value.data *= 2
    ids = random_ids(137)
    ours, theirs = ww.capture(model, ids), ww.capture(to_gptj(model), ids)
    for one, other in ((ww.score(ours), ww.score(theirs)), (ww.score_frequencies(ours), ww.score_frequencies(theirs))):
        assert torch.allclose(one.positional, other.positional, atol=1e-4)
        assert torch.allclose(one.symbolic, other.symbolic, atol=1e-4)


def own_rows(model: Transformer, ids: torch.Tensor, layer: int) -> torch.Tensor:
    """The last attention row of a layer, watched from outside: identity values make attention its own output."""
    rows: list[torch.Tensor] = []

    def watch(number, attend):
        def watched(queries, keys, values, drop):
            if number == layer:
                eye = torch.eye(keys.shape[2]).expand(*keys.shape[:3], -1)
                rows.append(attend(queries, keys, eye, drop)[:, :, -1].detach())
            return attend(queries, keys, values, drop)

        return watched

    with model.attending(watch):
        model(ids)
    return rows[0]


@pytest.mark.parametrize(
    "ids", [torch.zeros(1, 1, dtype=torch.long), torch.full((1, 5), 99), torch.zeros(2, 0, dtype=torch.long)]
)
def test_capture_refuses_bad_prompts(ids: torch.Tensor) -> None:
    with pytest.raises(BadInput):
        ww.capture(Transformer(SMALL), ids)


def test_dropout_keeps_the_mean_and_follows_from_seed_and_step() -> None:
    ones = torch.ones(1000, 500)
    dropped = Dropout(0.1, seed=0, step=4)(ones)
    assert abs(float((dropped == 0).float().mean()) - 0.1) < 2e-3
    assert abs(float(dropped.mean()) - 1) < 2e-3
    assert torch.equal(dropped, Dropout(0.1, seed=0, step=4)(ones))
    assert not torch.equal(dropped, Dropout(0.1, seed=0, step=5)(ones))
    assert Dropout(0.0, 0, 0)(ones) is ones


def test_embeddings_can_have_a_dropout_of_their_own() -> None:
    """Without any, what reaches the first block is the embedding; with the common one, some of it is 0."""
    model, ids = Transformer(SMALL), random_ids(41)
    seen: list[torch.Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        for apart in (Dropout(0.0, 0, 0), None):
            model(ids, drop=Dropout(0.5, 0, 0), drop_embedding=apart)
    assert torch.equal(seen[0], model.embedding(ids).detach())
    assert 0.3 < float((seen[1] == 0).float().mean()) < 0.7


def test_schedules() -> None:
    linear, cosine = Recipe(steps=100, warmup=10), Recipe(steps=100, warmup=10, schedule="cosine")
    assert [linear.rate_at(step) for step in (0, 5, 10, 55, 100)] == pytest.approx([0, 5e-5, 1e-4, 5e-5, 0])
    assert [cosine.rate_at(step) for step in (0, 5, 10, 55, 100)] == pytest.approx([0, 5e-5, 1e-4, 5e-5, 0])


def test_three_steps_are_those_of_the_published_optimizer() -> None:
    """Against the exported GPT-J and AdamW written out, in float64: one step cannot see the betas or the warm-up.

    The steps are the last of the warm-up and the first two of the decay; a large rate makes the weight decay visible.
    """
    from wherewhat.lab.train import Trainer

    sequences, rate = Number().sample(64), 1e-2
    model = Transformer(Shape(137, layers=2), seed=1).double()
    theirs = to_gptj(model, dropout=0.0).double().train()
    run = Trainer(model, Recipe(rate=rate, dropout=0.0), Path("unused"))
    run.step = 749
    first, second = ([torch.zeros_like(value) for value in theirs.parameters()] for _ in range(2))
    losses = []
    for number, now in enumerate([rate * 749 / 750, rate, rate * 5999 / 6000], 1):
        run.learn(sequences.tokens, sequences.answers)
        theirs.zero_grad()
        loss = torch.nn.functional.cross_entropy(theirs(sequences.tokens).logits[:, -1], sequences.answers)
        loss.backward()
        losses.append(float(loss.detach()))
        norm = torch.stack([value.grad.square().sum() for value in theirs.parameters()]).sum().sqrt()
        with torch.no_grad():
            for value, mean, square in zip(theirs.parameters(), first, second, strict=True):
                gradient = value.grad * min(1.0, 1.0 / (float(norm) + 1e-6))
                mean.copy_(0.95 * mean + 0.05 * gradient)
                square.copy_(0.999 * square + 0.001 * gradient**2)
                value.mul_(1 - now * (1e-4 if value.dim() > 1 else 0.0))
                value.sub_(now * (mean / (1 - 0.95**number)) / ((square / (1 - 0.999**number)).sqrt() + 1e-8))
    # The median: GPT-J computes attention in float32, and a gradient that is almost zero gets a sign by rounding.
    pairs = zip(to_gptj(model, dropout=0.0).double().parameters(), theirs.parameters(), strict=True)
    differences = torch.cat([(ours - other).detach().abs().flatten() for ours, other in pairs])
    assert differences.median() < 1e-9
    assert run.losses[749:752].tolist() == pytest.approx(losses, abs=1e-6)


KILLABLE = """
import sys, torch
torch.set_num_threads(1)
from wherewhat.lab import Recipe, Shape, train_model
from wherewhat.tasks import Number
task = Number()
train_model(Shape(137, layers=2), task.sample(2000), task.sample(80, 1), Recipe(steps=120, warmup=10), sys.argv[1],
            save_at=range(0, 121, 20))
"""


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_weights(tmp_path: Path) -> None:
    def start(folder: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", KILLABLE, str(tmp_path / folder)])

    assert start("whole").wait() == 0
    draw = torch.Generator().manual_seed(0)
    killed = 0
    for _ in range(3):
        process = start("killed")
        seen = len(list((tmp_path / "killed").glob("checkpoints/*")))
        while process.poll() is None and len(list((tmp_path / "killed").glob("checkpoints/*"))) <= seen:
            time.sleep(0.01)
        time.sleep(0.3 * float(torch.rand(1, generator=draw)))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed
    assert start("killed").wait() == 0
    for name in ("state.safetensors", "checkpoints/step-000120.safetensors", "loss.parquet", "accuracy.parquet"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    assert pd.read_parquet(tmp_path / "whole" / "accuracy.parquet").shape == (7 * 4, 3)


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    task = Number()
    some = task.sample(64)
    train_model(Shape(137, layers=1), some, some, Recipe(steps=1), tmp_path)
    with pytest.raises(BadInput, match="a run with other settings"):
        train_model(Shape(137, layers=1), some, some, Recipe(steps=2), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["number", "letter"])
def test_embedded_models_do_their_task(name: str) -> None:
    """On 2,000 of the test sequences, none of which was trained on."""
    model, test = ww.embedded(name), TASKS[name]().splits()[2][:2000]
    assert min(accuracy_by_hops(model, test)) > 0.99
    assert ww.score(ww.capture(model, test.tokens[:4])).positional.shape == (4, 12, 1)


def test_a_model_that_is_not_embedded() -> None:
    with pytest.raises(BadInput, match="no embedded model 'chess': letter, number"):
        ww.embedded("chess")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shape", [SMALL, replace(SMALL, gelu="none"), Shape(41, 3, 1, 24, 40, still_from=1)])
def test_fused_blocks_give_the_gradients_of_autograd(shape: Shape, compiled: bool, monkeypatch) -> None:
    """With dropout from the same masks, in float32 against the plain blocks in float64."""
    if not compiled:
        monkeypatch.setattr("wherewhat.lab.fused._compiled", lambda values: None)
    ids = random_ids(shape.vocabulary)
    plain, fused = Transformer(shape, seed=3).double(), Transformer(shape, seed=3)
    with torch.no_grad():
        for value, other in zip(plain.parameters(), fused.parameters(), strict=True):
            value.add_(0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel())))
            other.copy_(value)
            value.copy_(other)
    for model, product in ((plain, None), (fused, float32_product)):
        logits = model(ids, drop=Dropout(0.1, 0, 5), product=product)
        (logits * torch.linspace(-1, 1, logits.numel()).view(logits.shape)).sum().backward()
    for (name, exact), value in zip(plain.named_parameters(), fused.parameters(), strict=True):
        assert (exact.grad - value.grad).abs().max() < 2e-5 * exact.grad.abs().max(), name


def test_fused_blocks_in_float64_are_exact() -> None:
    """Where rounding hides nothing: against autograd of the plain blocks."""
    plain, fused, ids = Transformer(SMALL).double(), Transformer(SMALL).double(), random_ids(41)
    for model, product in ((plain, None), (fused, float32_product)):
        model(ids, last=True, drop=Dropout(0.2, 1, 0), product=product).square().sum().backward()
    for exact, value in zip(plain.parameters(), fused.parameters(), strict=True):
        assert torch.allclose(exact.grad, value.grad, rtol=1e-10, atol=1e-15)


def test_dropout_draws_the_bytes_of_numpy() -> None:
    """Masks of runs that were started with Generator.bytes, for shapes that leave half a number over."""
    drop, draw = Dropout(0.3, seed=7, step=2), np.random.Generator(np.random.SFC64([7, 2]))
    for size in (1, 2, 3, 4, 5, 7, 100, 1001, 6):
        words = np.frombuffer(draw.bytes(2 * size), dtype=np.int16)
        expected = torch.from_numpy(words >= round(0.3 * 2**16) - 2**15) * (1 / 0.7)
        assert torch.equal(drop(torch.ones(size)), expected)


def test_bfloat16_trains_almost_as_float32_does(tmp_path: Path) -> None:
    task = Number()
    some = task.sample(320)
    losses = []
    for bfloat16 in (False, True):
        recipe = Recipe(steps=20, batch=16, rate=1e-3, warmup=2, bfloat16=bfloat16)
        train_model(Shape(137, layers=2), some, some[:16], recipe, tmp_path / f"{bfloat16}")
        losses.append(torch.tensor(pd.read_parquet(tmp_path / f"{bfloat16}" / "loss.parquet")["loss"]))
    assert 0 < (losses[0] - losses[1]).abs().max() < 0.02
    assert "bfloat16" not in (tmp_path / "False" / "run.json").read_text()  # as runs before the option
    with pytest.raises(BadInput, match="exclude each other"):
        Recipe(half=True, bfloat16=True)


@pytest.mark.parametrize("batch", [2, 7])
def test_two_halves_of_a_batch_have_the_gradient_of_the_whole(batch: int) -> None:
    """Dropout included: each half gets its own rows of the masks."""
    found, read_by_twin = {}, []
    for threads in (1, 2):
        run = Trainer(Transformer(SMALL, seed=1), Recipe(batch=batch, dropout=0.3, clip=math.inf), Path())
        run.halves.twin.register_forward_pre_hook(lambda _, given: read_by_twin.append(len(given[0])))
        examples = Number().sample(batch)
        with processor_threads(threads):
            loss = run.learn(examples.tokens % SMALL.vocabulary, examples.answers % SMALL.vocabulary)
        found[threads] = [torch.tensor(loss), *(value.grad for value in run.model.parameters())]
        assert all(value.grad is None for value in run.halves.twin.parameters())
    assert read_by_twin == [batch - batch // 2]  # on two threads only
    for one, other in zip(found[1], found[2], strict=True):
        assert_close(one, other, atol=1e-6, rtol=1e-4)
