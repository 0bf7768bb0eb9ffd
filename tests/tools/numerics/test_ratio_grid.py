"""Logged ratios whose logarithms are multiples of one step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import Run
from synthetic.cases_numerics import bfloat16 as bf16

TOOL = "check_ratio_grid"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def log_ratios(seed: int, half: Callable[[Any], Any], steps: int = 40) -> Any:
    """(S,) largest of 200 differences of two log-probs, each rounded."""
    rng = np.random.default_rng(seed)
    old = -rng.gamma(2.0, 1.0, (steps, 200))
    new = old + rng.normal(0, 0.02, old.shape)
    return (half(new).astype(np.float64) - half(old).astype(np.float64)).max(axis=1)


def exact(values: Any) -> Any:
    return np.asarray(values, np.float32)


def f16(values: Any) -> Any:
    return np.asarray(values, np.float16)


def logged(make_run: MakeRun, logs: Any, name: str = "ratio_max") -> Run:
    """As a trainer in float32 logs them."""
    return make_run(signals={name: np.exp(exact(logs)).astype(np.float64).tolist()})


def test_hand_counted_values(make_run: MakeRun, measure: Measure) -> None:
    """9 of 10 on multiples of 1/64; 0 is no ratio that leaves 1."""
    logs = [k / 64 for k in (1, 2, 3, 1, 2, 3, 5, 5, 5, 7)]
    found = measure(TOOL, logged(make_run, [*logs, 0.0, 0.0, 0.0201]))
    assert (found["n_values"], found["n_distinct"]) == (11, 6)
    assert found["on_grid_share"] == pytest.approx(10 / 11, abs=1e-6)
    assert found["grid_nats"] == 1 / 64
    assert found["chance_share"] == pytest.approx(8e-6 * 64)


@pytest.mark.parametrize("name", ["ratio_max", "ratio_min"])
@pytest.mark.parametrize(("half", "coarsest"), [(bf16, 2.0**-8), (f16, 2.0**-11)])
def test_differences_of_16_bits(
    make_run: MakeRun, measure: Measure, half: Any, coarsest: float, name: str
) -> None:
    logs = log_ratios(1, half)
    found = measure(TOOL, logged(make_run, logs if name == "ratio_max" else -logs, name))
    assert found["on_grid_share"] > 0.9
    assert found["grid_nats"] >= coarsest
    assert found["from_start"]


def test_differences_of_32_bits(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, logged(make_run, log_ratios(1, exact)))
    assert found["on_grid_share"] < 0.2
    assert found["first_bad_step"] is None


def test_ratios_with_few_digits_lie_on_no_grid(make_run: MakeRun, measure: Measure) -> None:
    ratios = [float(f"{v:.4g}") for v in np.exp(log_ratios(1, bf16))]
    found = measure(TOOL, make_run(signals={"ratio_max": ratios}))
    assert found["on_grid_share"] < 0.5


def test_a_clamp_leaves_few_values(make_run: MakeRun, measure: Measure) -> None:
    """At +-1/2, on a grid like the others: the gate asks for several values."""
    found = measure(TOOL, logged(make_run, np.full(40, 0.5)))
    assert (found["on_grid_share"], found["n_distinct"]) == (1, 1)


def test_without_ratios(make_run: MakeRun, measure: Measure, missing: Callable[..., str]) -> None:
    assert "no ratio_max" in missing(TOOL, make_run(signals={"loss": [1.0] * 9}))
    assert measure(TOOL, make_run(signals={"ratio_max": [1.0] * 9}))["n_values"] == 0


@settings(max_examples=8, derandomize=True)
@given(seed=st.integers(0, 100), by=st.integers(0, 1000))
def test_only_dates_move_with_the_steps(
    make_run: MakeRun, measure: Measure, changed: SimpleNamespace, seed: int, by: int
) -> None:
    run = logged(make_run, log_ratios(seed, bf16))
    before = measure(TOOL, run)
    assert measure(TOOL, changed.shift_steps(run, by)) == changed.dates_moved(before, by)
