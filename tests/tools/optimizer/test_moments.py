"""Moments of saved optimizer states: what no gradients give, against what real ones gave."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.tools.optimizer.moments import largest_first_moment
from firstbad.tools.run import Checkpoint, Run
from synthetic.torch_files import Bf16, adam_state, moments_of, save_torch

TOOL = "check_moments"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Saved = Callable[..., Checkpoint]


@pytest.fixture(name="gradients")
def _gradients() -> Any:
    """60 gradients of 500 numbers."""
    return np.random.default_rng(3).normal(0, 1e-3, (60, 500))


@pytest.fixture(name="saved")
def _saved(tmp_path: Path) -> Saved:
    """A checkpoint with these moments: `saved(60, (first, second))`."""

    def build(step: int, *pairs: Any, counted: int | None = None, **settings: Any) -> Checkpoint:
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        state = adam_state(*pairs, step=counted or step, **settings)
        save_torch(folder / "optimizer.pt", state)
        return Checkpoint(step, folder, ("optimizer.pt",), step)

    return build


def test_the_bound_by_hand() -> None:
    # 0.01 / (0.001 (1 - 0.81 / 0.999)) = 52.857, 0.01 / (0.01 (1 - 0.81 / 0.99)) = 5.5
    assert largest_first_moment(0.9, 0.999) == pytest.approx(math.sqrt(52.857), rel=1e-4)
    assert largest_first_moment(0.9, 0.99) == pytest.approx(math.sqrt(5.5))
    assert largest_first_moment(0.9, 0.8) is None  # 0.81 > 0.8: the first forgets more slowly


@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=80),
    st.sampled_from([(0.9, 0.999), (0.9, 0.95), (0.8, 0.9), (0.0, 0.99)]),
)
def test_no_gradients_give_more_than_the_bound(
    gradients: list[float], betas: tuple[float, float]
) -> None:
    first = second = 0.0
    for g in gradients:
        first = betas[0] * first + (1 - betas[0]) * g
        second = betas[1] * second + (1 - betas[1]) * g * g
    bound = largest_first_moment(*betas)
    assert bound is not None
    assert abs(first) <= bound * math.sqrt(second) * (1 + 1e-9) + 1e-150


def test_the_bound_is_reached() -> None:
    # By gradients that grow by b2 / b1 from each step to the next.
    first = second = 0.0
    for i in range(400):
        g = (0.99 / 0.9) ** i * 1e-10
        first, second = 0.9 * first + 0.1 * g, 0.99 * second + 0.01 * g * g
    assert first / math.sqrt(second) == pytest.approx(largest_first_moment(0.9, 0.99), rel=1e-6)


def test_moments_of_one_run_of_gradients(
    make_run: MakeRun, measure: Measure, saved: Saved, gradients: Any
) -> None:
    found = measure(TOOL, make_run(checkpoints=(saved(60, moments_of(gradients)),)))
    assert (found["n_states"], found["n_numbers"]) == (1, 500)
    assert found["second_zero_share"] == found["impossible_share"] == found["blank_share"] == 0
    assert found["largest_over_bound"] < 0.9
    assert not found["coarse"]
    assert (found["last_good_step"], found["first_bad_step"]) == (60, None)


def test_second_moments_that_were_lost(
    make_run: MakeRun, measure: Measure, saved: Saved, gradients: Any
) -> None:
    first, second = moments_of(gradients)
    half = second.copy()
    half[:125] = 0
    run = make_run(
        events=[("resume", 61, "resumed")],
        checkpoints=(saved(40, (first, second)), saved(80, (first, half))),
    )
    found = measure(TOOL, run)
    assert found["second_zero_share"] == 0.25
    assert (found["last_good_step"], found["first_bad_step"]) == (60, 61)


def test_moments_of_other_parameters(
    make_run: MakeRun, measure: Measure, saved: Saved, gradients: Any
) -> None:
    # First moments of a parameter whose gradients are 100 times those of the second moments.
    first, _ = moments_of(100 * gradients)
    _, second = moments_of(gradients)
    found = measure(TOOL, make_run(checkpoints=(saved(60, (first, second)),)))
    expected = np.mean(np.abs(first) > 7.2703 * np.sqrt(second) * 1.01)
    assert found["impossible_share"] == pytest.approx(expected)
    assert expected > 0.5
    assert found["from_start"]


def test_moments_with_16_bits_are_not_held_against_the_bound(
    make_run: MakeRun, measure: Measure, saved: Saved
) -> None:
    """Rounding of an average that moves by less than a unit of its last place adds up."""
    pair = (Bf16([1.0, 1.0]), Bf16([1e-6, 1e-6]))
    found = measure(TOOL, make_run(checkpoints=(saved(60, pair),)))
    assert (found["largest_over_bound"], found["impossible_share"]) == (None, 0)
    assert (found["coarse"], found["on_grid_share"]) == (False, 0)


@pytest.mark.parametrize("settings", [{"betas": (0.9, 0.8)}, {"lr": 1.0, "betas": None}])
def test_averages_that_are_none_of_adams(
    make_run: MakeRun, measure: Measure, saved: Saved, settings: Any
) -> None:
    pair = (np.ones(4, np.float32), np.full(4, 1e-6, np.float32))
    found = measure(TOOL, make_run(checkpoints=(saved(60, pair, **settings),)))
    assert found["largest_over_bound"] is None


def test_moments_that_are_all_0(
    make_run: MakeRun, measure: Measure, saved: Saved, gradients: Any
) -> None:
    nothing = (np.zeros(500, np.float32), np.zeros(500, np.float32))
    run = make_run(signals={"grad_norm_preclip": [0.5] * 60}, checkpoints=(saved(60, nothing),))
    found = measure(TOOL, run)
    assert (found["blank_share"], found["norm_logged"]) == (1.0, 0.5)
    # Part of a model without any gradient yet, such as rows of tokens that never occur, is normal.
    good = moments_of(gradients)
    part = measure(TOOL, make_run(checkpoints=(saved(61, nothing, good),)))
    assert part["blank_share"] == 0.5
    assert part["first_bad_step"] is None
    # Before anything was counted, 0 is where they begin.
    assert measure(TOOL, make_run(checkpoints=(saved(62, nothing, counted=1),)))["blank_share"] == 0


def test_moments_on_the_grid_of_bfloat16(
    make_run: MakeRun, measure: Measure, saved: Saved, gradients: Any
) -> None:
    first, second = moments_of(gradients)
    cut = (second.view(np.uint32) & 0xFFFF0000).view(np.float32)
    first_cut = (first.view(np.uint32) & 0xFFFF0000).view(np.float32)
    states = (saved(60, (first_cut, cut)), saved(120, (first, second)))
    found = measure(TOOL, make_run(events=[("resume", 61, "resumed")], checkpoints=states))
    assert found["on_grid_share"] == 1.0
    assert (found["coarse"], found["coarse_resumed"]) == (True, True)
    # Saved so, and never gone on from: a fact of the file, no fault of the run.
    alone = measure(TOOL, make_run(checkpoints=states))
    assert (alone["coarse"], alone["coarse_resumed"]) == (True, False)


def test_moments_from_a_table_of_few_values(
    make_run: MakeRun, measure: Measure, saved: Saved, gradients: Any
) -> None:
    first, second = moments_of(gradients)
    largest = float(second.max())
    levels = (np.round(second / largest * 255) / 255 * largest).astype(np.float32)
    found = measure(TOOL, make_run(checkpoints=(saved(60, (first, levels)),)))
    kept = levels[levels != 0]
    assert found["repeated_share"] == pytest.approx(1 - len(set(kept.tolist())) / len(kept))
    assert found["coarse"]


def test_what_is_not_finite_and_what_lies_below_epsilon(
    make_run: MakeRun, measure: Measure, saved: Saved
) -> None:
    first = np.array([1e-10, np.nan, 1e-10, 1e-3], np.float32)
    second = np.array([1e-18, 1.0, np.inf, 1e-4], np.float32)  # roots: 1e-9, 1, -, 0.01
    found = measure(TOOL, make_run(checkpoints=(saved(60, (first, second)),)))
    assert (found["nonfinite_share"], found["below_eps_share"]) == (0.5, 0.25)


def test_without_moments(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "moments" in missing(TOOL, make_run())
