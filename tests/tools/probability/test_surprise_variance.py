"""The z of the surprise by captured varentropies, and the least sum of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, Run

TOOL = "test_surprise"
MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]


def coin(p: float) -> tuple[float, float]:
    """Entropy and varentropy of a coin, nats."""
    entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
    return entropy, p * math.log(p) ** 2 + (1 - p) * math.log(1 - p) ** 2 - entropy**2


def tossed(
    capture: MakeCapture, p: float, rare: int, *, step: int = 1, n: int = 1500, **arrays: Any
) -> Capture:
    """`n` tosses, of which `rare` are the less likely side, in rows of ten."""
    entropy, varentropy = coin(p)
    logp = np.full(n, math.log(p))
    logp[:rare] = math.log(1 - p)
    flat = np.ones((n // 10, 10))
    made = {
        "token_id": 5 * flat,
        "logp_new": logp.reshape(flat.shape),
        "entropy": entropy * flat,
        "varentropy": varentropy * flat,
        **arrays,
    }
    return capture(step, **{name: values for name, values in made.items() if values is not None})


def test_sum_over_the_root_of_the_summed_varentropies(
    make_run: MakeRun, capture: MakeCapture, measure: Measure
) -> None:
    # A coin of 0.9: entropy 0.3251, varentropy 0.09 x ln(9)^2 = 0.4345. Of 1,500 tosses 200 are
    # rare where 150 are expected: the sum is 50 x ln(9) = 109.9, and its spread sqrt(651.8) = 25.5.
    m = measure(TOOL, make_run(captures=[tossed(capture, 0.9, 200)]))
    assert m["variance"] == pytest.approx(1500 * 0.09 * math.log(9) ** 2, abs=1e-3)
    assert m["surprise_all"] == pytest.approx(50 * math.log(9) / 1500, abs=1e-5)
    assert m["z_all"] == pytest.approx(50 / math.sqrt(1500 * 0.09), abs=1e-3)


def test_near_zero_entropy_few_rare_tokens_are_no_proof(
    make_run: MakeRun, capture: MakeCapture, measure: Measure
) -> None:
    # A coin of 0.9999: the sum of varentropies is 12.7, so that three rare tokens of 1,500, which
    # come in 0.05 % of such samples and not in the 1e-12 of a z of 7, would be a z of 7.4.
    m = measure(TOOL, make_run(captures=[tossed(capture, 0.9999, 3)]))
    assert m["variance"] == pytest.approx(12.7, abs=0.1)
    naive = m["surprise_all"] * 1500 / math.sqrt(m["variance"])
    assert naive > 7
    assert m["z_all"] == pytest.approx(m["surprise_all"] * 1500 / 10, abs=1e-4)
    assert m["z_all"] < 3


def test_a_clear_surprise_speaks_near_zero_entropy_too(
    make_run: MakeRun, capture: MakeCapture, measure: Measure
) -> None:
    m = measure(TOOL, make_run(captures=[tossed(capture, 0.9999, 30)]))
    assert m["largest"] > 0.1
    assert m["z_all"] > 20


def test_captures_that_drift_do_not_widen_it(
    make_run: MakeRun, capture: MakeCapture, measure: Measure
) -> None:
    """Without varentropies the spread over captures counts, which a drift makes wider."""
    counts = enumerate((150, 170, 190, 210), start=1)
    captures = [tossed(capture, 0.9, rare, step=s) for s, rare in counts]
    with_them = measure(TOOL, make_run(captures=captures))
    counts = enumerate((150, 170, 190, 210), start=1)
    bare = [tossed(capture, 0.9, rare, step=s, varentropy=None) for s, rare in counts]
    without = measure(TOOL, make_run(captures=bare))
    assert without["variance"] is None
    assert with_them["surprise_all"] == without["surprise_all"]
    assert with_them["z_all"] == pytest.approx(120 / math.sqrt(6000 * 0.09), abs=1e-3)
    assert without["z_all"] < with_them["z_all"]


def test_a_capture_without_them_leaves_the_spread(
    make_run: MakeRun, capture: MakeCapture, measure: Measure
) -> None:
    flat = np.full((150, 10), 0.4)
    flat[3, 3] = np.nan
    captures = [tossed(capture, 0.9, 150), tossed(capture, 0.9, 150, step=2, varentropy=flat)]
    assert measure(TOOL, make_run(captures=captures))["variance"] is None
