"""A point mass at the least log-prob, and what only resembles one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, Run, Vocabulary

TOOL = "find_floor"
MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]
STEPS = (1, 10, 20, 30)
STOP = 9


def captures(
    capture: MakeCapture,
    least: Callable[[int, Any], Any],
    *,
    mask: bool = True,
    entropy: float = 1.1,
) -> list[Capture]:
    """Four captures of 16 rows of 10 tokens; `least` changes the log-probs of a step."""
    found = []
    for step in STEPS:
        rng = np.random.default_rng(step)
        logp = least(step, -rng.exponential(1.2, (16, 10)))
        arrays = {
            "token_id": np.full((16, 10), 5),
            "completion_mask": np.ones((16, 10), bool),
            "logp_new": logp,
            "entropy": np.full((16, 10), entropy),
        }
        if mask:
            arrays["loss_mask"] = np.ones((16, 10), bool)
        found.append(capture(step, **arrays))
    return found


@pytest.fixture(name="run_of")
def _run_of(make_run: MakeRun) -> MakeRun:
    """Runs whose stop token is known, and stands in no row."""
    return partial(make_run, vocabulary=Vocabulary({}, frozenset({STOP}), 0, ()))


def from_20(value: float) -> Callable[[int, Any], Any]:
    return lambda step, logp: np.maximum(logp, value) if step >= 20 else logp


def test_a_clamp_is_told_and_dated(run_of: MakeRun, capture: MakeCapture, measure: Measure) -> None:
    saved = captures(capture, from_20(-1.0))
    found = measure(TOOL, run_of(captures=saved))
    at = np.concatenate([c.arrays["logp_new"].ravel() for c in saved[2:]])
    assert found["floor"] == -1
    assert found["floor_share"] == pytest.approx(float((at <= -1 + 0.02).mean()), abs=1e-6)
    assert found["n_captures_at_floor"] == 2
    assert (found["last_good_step"], found["first_bad_step"]) == (10, 20)
    assert not found["floor_is_power_of_ten"]
    assert not found["floor_is_sentinel"]
    whole = measure(TOOL, run_of(captures=captures(capture, lambda _, p: np.maximum(p, -1.0))))
    assert whole["from_start"]
    assert whole["n_captures_at_floor"] == 4


def with_eps(step: int, logp: Any) -> Any:
    return np.log(np.exp(4 * logp) + 1e-4)


def test_an_eps_under_the_logarithm(
    run_of: MakeRun, capture: MakeCapture, measure: Measure
) -> None:
    found = measure(TOOL, run_of(captures=captures(capture, with_eps)))
    assert found["floor"] == pytest.approx(np.log(1e-4), abs=0.02)
    assert found["floor_is_power_of_ten"]
    assert found["n_captures_at_floor"] >= 2


@pytest.mark.parametrize(("mask", "found"), [(True, 4), (False, 0)])
def test_a_stand_in(
    run_of: MakeRun, capture: MakeCapture, measure: Measure, mask: bool, found: int
) -> None:
    """Without a loss mask nothing tells whether such tokens are in the loss."""

    def filled(step: int, logp: Any) -> Any:
        return np.where(np.arange(10) == 3, -1e4, logp)

    told = measure(TOOL, run_of(captures=captures(capture, filled, mask=mask)))
    assert told["n_captures_at_floor"] == found
    assert told["floor_is_sentinel"] == mask


@pytest.mark.parametrize(
    ("least", "entropy"),
    [
        (lambda step, logp: logp, 1.1),
        (lambda step, logp: np.round(logp * 16) / 16, 1.1),  # coarse numbers
        (lambda step, logp: np.zeros_like(logp), 0.0),  # nothing to choose
        # Ten digits, equally likely, or nothing to choose: the same in all captures.
        (lambda step, logp: np.where(logp < -1, -np.log(10.0), 0.0), float(np.log(10.0))),
        # A limit that moves with the weights, as the last of the top k does.
        (lambda step, logp: np.maximum(logp, -1.0 - step / 50), 1.1),
        (lambda step, logp: np.maximum(logp, -1.0) if step == 20 else logp, 1.1),
    ],
    ids=["plain", "coarse", "greedy", "equally likely", "moving", "one capture"],
)
def test_what_is_no_floor(
    run_of: MakeRun,
    capture: MakeCapture,
    measure: Measure,
    least: Callable[[int, Any], Any],
    entropy: float,
) -> None:
    found = measure(TOOL, run_of(captures=captures(capture, least, entropy=entropy)))
    assert found["n_captures_at_floor"] == 0
    assert found["floor"] is None
    assert found["first_bad_step"] is None


def few_values(step: int, logp: Any) -> Any:
    """Four tokens are all there is, and the policy hardly moves any more: 4 log-probs a step."""
    p = np.array([0.06, 0.07, 0.17, 0.7])
    p = p + (step >= 20) * 1e-5 * step * np.array([1, 0, 0, -1])
    return np.log(p)[np.random.default_rng(step).choice(4, logp.shape, p=p / p.sum())]


def copies(step: int, logp: Any) -> Any:
    """Two rows, eight times each, from a policy that is frozen."""
    return np.tile(-np.random.default_rng(0).exponential(1.2, (2, 10)), (8, 1))


@pytest.mark.parametrize("least", [few_values, copies])
def test_other_values_come_as_often(
    run_of: MakeRun, capture: MakeCapture, measure: Measure, least: Callable[[int, Any], Any]
) -> None:
    found = measure(TOOL, run_of(captures=captures(capture, least)))
    assert found["floor"] is None


def test_a_clamp_beside_tokens_without_an_alternative(
    run_of: MakeRun, capture: MakeCapture, measure: Measure
) -> None:
    """Certain tokens have one value too, and more often than the limit."""

    def half_certain(step: int, logp: Any) -> Any:
        certain = np.random.default_rng(step + 1).random(logp.shape) < 0.7
        return np.where(certain, -1e-7, np.maximum(logp, -1.0))

    found = measure(TOOL, run_of(captures=captures(capture, half_certain)))
    assert found["floor"] == -1


def test_a_clamp_in_numbers_of_16_bits(
    run_of: MakeRun, capture: MakeCapture, measure: Measure
) -> None:
    saved = captures(capture, lambda _, p: np.maximum(p, -1.0).astype(np.float16))
    assert measure(TOOL, run_of(captures=saved))["floor"] == -1


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "no captures" in missing(TOOL, make_run())
