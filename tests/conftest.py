"""The real models, and what happens where they are missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from transformers import PreTrainedModel

import wherewhat as ww

torch.set_num_threads(1)
settings.register_profile("wherewhat", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("wherewhat")

WEIGHTS = Path(os.environ.get("WHEREWHAT_WEIGHTS", Path(__file__).parents[2] / "shared" / "weights"))


def weights(name: str) -> Path:
    """The path of some real weights; the test is skipped without them, and fails without them under CI."""
    path = WEIGHTS / name
    if not path.exists():
        reason = f"no weights at {path}: set WHEREWHAT_WEIGHTS to the folder that holds {name}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def stories260k() -> PreTrainedModel:
    return ww.load(weights("stories260K"))


@pytest.fixture(scope="session")
def stories15m() -> PreTrainedModel:
    return ww.load(weights("stories15M"))


@pytest.fixture(scope="session")
def smollm2() -> PreTrainedModel:
    return ww.load(weights("SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf"))


# Known faults and the tests that show them. A test that passes again fails here until it leaves the list.
FLAT = "a flat placement whose place, bias or sink has fewer rows than it has heads is not always read modulo its rows"
FAULTS = {
    "test_the_table_is_the_logit_of_each_content_put_at_each_place": FLAT,
    "test_the_diagonal_is_the_real_logits": FLAT,
    "test_captures_in_half_precision_are_measured_in_float32": FLAT,
    "test_a_nope_head_is_symbolic": FLAT,
    "test_a_head_whose_contents_are_all_equal_is_positional": FLAT,
    "test_scores_lie_between_zero_and_one_whatever_the_logits": FLAT,
    "test_scores_are_those_of_swaps_done_by_hand": FLAT,
    "test_a_captured_layer_scores_as_swaps_done_by_hand": FLAT,
    "test_the_order_of_the_blocks_does_not_matter": FLAT,
    "test_heads_keep_their_scores_under_other_names": FLAT,
    "test_prompts_do_not_meet_in_a_batch": FLAT,
    "test_work_in_pieces_and_tiles_gives_the_same": FLAT,
    "test_variance_is_at_most_the_two_deviations": FLAT,
    "test_deviations_are_those_of_the_explicit_table": FLAT,
    "test_deviations_are_the_average_over_all_permutations[True-None": FLAT,
    "test_a_head_of_equal_contents_has_no_positional_deviation": FLAT,
    "test_each_frequency_scores_as_a_head_of_its_own": FLAT,
    "test_what_does_not_turn_is_symbolic_and_comes_last": FLAT,
    "test_a_slow_frequency_is_more_symbolic_than_a_fast_one": FLAT,
    "test_the_frequency_axis_of_a_mixed_trace_has_nan_where_a_layer_has_nothing": FLAT,
    "test_every_head_and_frequency_of_smollm2_has_scores_in_range": FLAT,
    "test_a_head_that_sees_none_of_the_blocks_has_no_score": "0 / 0 in a gentle tile outside the window",
    "test_any_positive_tau_will_do[1e-300]": "d / tau overflows",
    "test_any_positive_tau_will_do[2.2": "d / tau overflows",
    "test_a_prompt_that_cannot_be_run[words]": "input_ids that are no tensor are not refused",
    "test_a_prompt_that_cannot_be_run[a list]": "input_ids that are no tensor are not refused",
    "test_a_prompt_that_cannot_be_run[fractions]": "input_ids that are no integers are not refused",
    "test_blocks_that_cannot_change_places[no pairs]": "blocks that are no pairs are not refused",
    "test_blocks_that_cannot_change_places[plain numbers]": "blocks that are no pairs are not refused",
    "test_weights_of_which_some_are_missing": "missing weights are drawn at random",
    "test_the_examples_of[wherewhat.capture.capture]": "the second line of the example is not skipped",
    "test_the_examples_of[wherewhat.capture.load]": "the second line of the example is not skipped",
    "test_the_examples_of[wherewhat.core.measure]": "the second line of the example is not skipped",
    "test_the_examples_of[wherewhat.core.trace]": "the second line of the example is not skipped",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, reason in FAULTS.items():
            if item.name.startswith(name):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
