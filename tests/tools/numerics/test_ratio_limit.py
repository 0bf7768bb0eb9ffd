"""Extreme ratios that all end at one value, and those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Run

TOOL = "find_ratio_limit"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def extremes(seed: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    return np.exp(np.abs(rng.normal(0.2, 0.1, 60)) + 0.01)


def test_a_clamp_of_the_log_ratio(make_run: MakeRun, measure: Measure) -> None:
    ratio = extremes()
    limited = np.where(
        np.arange(1, 61) >= 21, np.minimum(ratio, np.exp(0.2)), np.minimum(ratio, 1.2)
    )
    limited[:20] = np.minimum(limited[:20], 1.15 + np.arange(20) / 1000)
    found = measure(TOOL, make_run(signals={"ratio_max": limited}, config={"epsilon": 0.2}))
    assert found["limit"] == pytest.approx(1.2214, abs=1e-4)
    assert found["log_limit"] == pytest.approx(0.2, abs=1e-4)
    hits = limited >= np.exp(0.2) - 1e-9
    assert found["share_at_limit"] == pytest.approx(float(hits.mean()), abs=1e-6)
    assert found["share_at_limit"] > 0.2
    assert found["first_bad_step"] == int(np.argmax(hits)) + 1
    assert not found["is_clip"]


def test_a_clamp_from_below(make_run: MakeRun, measure: Measure) -> None:
    signals = {"ratio_min": np.maximum(1 / extremes(), np.exp(-0.2))}
    found = measure(TOOL, make_run(signals=signals))
    assert found["limit"] == pytest.approx(0.8187, abs=1e-4)
    assert found["share_at_limit"] > 0.2


@pytest.mark.parametrize(
    ("limit", "config"),
    [(1.2, {"epsilon": 0.2}), (1.28, {"epsilon": 0.2, "epsilon_high": 0.28}), (1.2, {})],
)
def test_ratios_logged_after_the_clip(
    make_run: MakeRun, measure: Measure, limit: float, config: dict[str, float]
) -> None:
    signals = {"ratio_max": np.minimum(extremes(), limit)}
    assert measure(TOOL, make_run(signals=signals, config=config))["is_clip"]


def test_free_ratios(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(signals={"ratio_max": extremes(), "ratio_min": 1 / extremes(2)}))
    assert found["share_at_limit"] < 0.1


@pytest.mark.parametrize("signals", [{"ratio_max": [1.0] * 60}, {"ratio_max": [1.3] * 5}])
def test_ratios_that_hardly_leave_1(
    make_run: MakeRun, measure: Measure, signals: dict[str, list[float]]
) -> None:
    found = measure(TOOL, make_run(signals=signals))
    assert (found["n_steps"], found["limit"], found["share_at_limit"]) == (0, None, 0)


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "no ratio_max" in missing(TOOL, make_run())
