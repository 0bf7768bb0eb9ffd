"""The policy after a resume against the one before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firstbad.tools.run import Run

TOOL = "compare_resumes"
AT = 41

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Values = npt.NDArray[np.float64]


def learned(seed: int, steps: int = 80) -> dict[str, Values]:
    """Reward that rises and entropy that falls, with the noise of small batches."""
    rng = np.random.default_rng(seed)
    way = np.linspace(0, 1, steps)
    return {
        "reward_mean": 0.6 + 0.6 * way + rng.normal(0, 0.04, steps),
        "entropy": 1.2 - 0.5 * way + rng.normal(0, 0.03, steps),
        "completion_length_mean": 15 + rng.normal(0, 0.5, steps),
    }


def resumed(make_run: MakeRun, signals: dict[str, Values]) -> Run:
    return make_run(signals=signals, events=[("resume", AT, "step goes back")])


@pytest.mark.parametrize("seed", range(5))
def test_a_clean_resume(make_run: MakeRun, measure: Measure, seed: int) -> None:
    found = measure(TOOL, resumed(make_run, learned(seed)))
    assert found["n_resumes"] == 1
    assert found["return_sds"] < 4
    assert found["first_bad_step"] is None


@pytest.mark.parametrize("seed", range(5))
def test_older_weights(make_run: MakeRun, measure: Measure, seed: int) -> None:
    signals = learned(seed)
    for values in signals.values():  # what step 6 had goes on at step 41
        values[AT - 1 :] = values[5 : 5 + len(values) - AT + 1]
    found = measure(TOOL, resumed(make_run, signals))
    assert found["return_sds"] > 4
    for name in ("reward", "entropy"):
        values = signals["reward_mean" if name == "reward" else name]
        assert found[f"{name}_before"] == pytest.approx(values[AT - 11 : AT - 1].mean(), abs=1e-6)
        assert found[f"{name}_after"] == pytest.approx(values[AT - 1], abs=1e-6)
    assert (found["last_good_step"], found["first_bad_step"]) == (AT - 1, AT)


@pytest.mark.parametrize("name", ["reward_mean", "entropy"])
def test_one_of_the_two_alone_is_something_else(
    make_run: MakeRun, measure: Measure, name: str
) -> None:
    # A verifier or data that changed moves the reward, a temperature the entropy.
    signals = learned(1)
    signals[name][AT - 1 :] = signals[name][5 : 5 + 80 - AT + 1]
    found = measure(TOOL, resumed(make_run, signals))
    assert found["return_sds"] == 0
    assert found["first_bad_step"] is None


def test_an_early_resume_tells_nothing(make_run: MakeRun, missing: Callable[..., str]) -> None:
    run = make_run(signals=learned(0), events=[("resume", 9, "step goes back")])
    assert "resume" in missing(TOOL, run)
