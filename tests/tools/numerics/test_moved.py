"""Updates that are rounded away (case B085), and those that add up in a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.flight import Flight, FlightStep, ParameterGroup
from firstbad.tools.run import Run

TOOL = "check_moved_share"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def bfloat16(values: Any) -> Any:
    bits = np.asarray(values, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def trained(
    make_run: MakeRun,
    first: Any,
    rate: float,
    *,
    steps: int = 100,
    dtype: str = "bfloat16",
    master: str | None = "bfloat16",
) -> Run:
    """Updates of size `rate` in random directions, as the dtypes keep them."""
    rng = np.random.default_rng(0)
    keep: Callable[[Any], Any] = bfloat16 if dtype == "bfloat16" else np.float32
    weights: Any = keep(first)
    copy = np.asarray(first, np.float64)
    kept = {}
    for step in range(1, steps + 1):
        change = rate * rng.choice([-1.0, 1.0], size=len(weights))
        copy = (copy if master == "float32" else weights.astype(np.float64)) + change
        new = keep(copy)
        kept[step] = FlightStep(
            step,
            parameters=(
                ParameterGroup(
                    "norm", 0.3, float(np.linalg.norm(new - weights)),
                    float(np.linalg.norm(weights)), float((new != weights).mean()), dtype, master,
                ),
            ),
        )  # fmt: skip
        weights = new
    return make_run(flight=Flight(list(kept), kept.__getitem__))


def test_weights_at_one_never_move(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, trained(make_run, np.ones(768), 6e-4))
    assert found["moved_least"] == 0.0
    assert (found["n_half"], found["n_no_master"], found["n_updates"]) == (1, 1, 100)
    assert found["from_start"]


@pytest.mark.parametrize(("rate", "share"), [(1e-6, 0.020), (1e-5, 0.15)])
def test_share_of_small_weights_that_move(
    make_run: MakeRun, measure: Measure, rate: float, share: float
) -> None:
    first = np.random.default_rng(1).normal(0, 0.02, 20_000)
    found = measure(TOOL, trained(make_run, first, rate, steps=20))
    assert found["moved_least"] == pytest.approx(share, rel=0.35)


def test_a_copy_in_32_bits_and_weights_in_32_bits_say_nothing(
    make_run: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, trained(make_run, np.ones(768), 6e-4, master="float32"))
    assert (found["moved_least"], found["n_half"], found["n_no_master"]) == (None, 1, 0)
    found = measure(TOOL, trained(make_run, np.ones(768), 6e-4, dtype="float32", master=None))
    assert (found["moved_least"], found["n_half"]) == (None, 0)


def test_nothing_is_said_of_the_copy(make_run: MakeRun, measure: Measure) -> None:
    """No number moves in a hundred updates: there is none. Where some move, nobody knows."""
    found = measure(TOOL, trained(make_run, np.ones(768), 6e-4, master=None))
    assert (found["n_unstated"], found["still_unstated"], found["moved_least"]) == (1, 1, 0.0)
    first = np.random.default_rng(1).normal(0, 0.02, 2000)
    found = measure(TOOL, trained(make_run, first, 1e-6, master=None))
    assert (found["n_unstated"], found["still_unstated"], found["moved_least"]) == (1, 0, None)


def test_groups_without_a_gradient_are_left_out(
    make_run: MakeRun, missing: Callable[..., str]
) -> None:
    still = ParameterGroup("frozen", 0.0, 0.0, 1.0, 0.0, "bfloat16", "bfloat16")
    kept = {s: FlightStep(s, parameters=(still,)) for s in range(1, 31)}
    run = make_run(flight=Flight(list(kept), kept.__getitem__))
    assert "no group of parameters with a gradient" in missing(TOOL, run)
