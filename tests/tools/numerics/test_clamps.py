"""Limits: what they are is a matter of place, never of the number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any

import pytest

from firstbad.tools.flight import Clamp, Flight, FlightStep
from firstbad.tools.run import Run

TOOL = "check_clamps"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def run_of(make_run: MakeRun, *limits: Sequence[Clamp]) -> Run:
    steps = {i: FlightStep(i, clamps=tuple(clamps)) for i, clamps in enumerate(limits, 1)}
    return make_run(flight=Flight(list(steps), steps.__getitem__))


@pytest.mark.parametrize(
    ("place", "numerical"),
    [
        ("log_ratio", True),
        ("ratio", True),
        ("objective", False),
        ("importance_weight", False),
        ("dual_clip", False),
    ],
)
def test_the_same_number_at_five_places(
    make_run: MakeRun, measure: Measure, place: str, numerical: bool
) -> None:
    low, high = (-0.2, 0.2) if place == "log_ratio" else (0.8, 1.2)
    found = measure(TOOL, run_of(make_run, [Clamp("limit", place, low, high, 1000, 150)]))
    assert found["n_clamps"] == 1
    assert found["n_numerical"] == numerical
    assert found["hit_share"] == (0.15 if numerical else 0.0)
    assert found["hit_share_legal"] == (0.0 if numerical else 0.15)
    assert found["after_exp"] == (place == "ratio")
    assert found["n_after_exp"] == (place == "ratio")
    if place == "log_ratio":
        assert found["limit_log_ratio"] == 0.2
    if place == "ratio":
        assert found["limit_log_ratio"] == pytest.approx(log(1.2), abs=1e-6)


def test_a_fuse_that_never_hits(make_run: MakeRun, measure: Measure) -> None:
    fuse = Clamp("fuse", "log_ratio", -20.0, 20.0, 1000, 0)
    found = measure(TOOL, run_of(make_run, [fuse], [fuse]))
    assert (found["hit_share"], found["limit_log_ratio"]) == (0.0, 20.0)
    assert found["first_bad_step"] is None


def test_hits_count_from_the_first_on(make_run: MakeRun, measure: Measure) -> None:
    quiet, hits = (Clamp("fuse", "log_ratio", -0.2, 0.2, 100, n) for n in (0, 30))
    found = measure(TOOL, run_of(make_run, [quiet], [quiet], [hits], [quiet]))
    assert found["hit_share"] == 0.15
    assert (found["last_good_step"], found["first_bad_step"]) == (2, 3)


def test_a_clamp_without_counts_says_nothing(
    make_run: MakeRun, missing: Callable[..., str]
) -> None:
    assert "no recorded clamp" in missing(TOOL, run_of(make_run, [Clamp("fuse", "log_ratio")]))


def test_a_clamp_behind_exp_counts_without_a_hit(make_run: MakeRun, measure: Measure) -> None:
    """Beside one before exp, which hits more often and is the one that is told of."""
    before, behind = (
        Clamp("fuse", "log_ratio", -20.0, 20.0, 1000, 1),
        Clamp("cap", "ratio", None, 10.0, 1000, 0),
    )
    found = measure(TOOL, run_of(make_run, [before, behind]))
    assert (found["after_exp"], found["n_after_exp"], found["hit_share"]) == (False, 1, 0.001)
    assert measure(TOOL, run_of(make_run, [before]))["n_after_exp"] == 0
