"""Names of samples from stage to stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.flight import Flight, FlightStep, Stages
from firstbad.tools.run import Run

TOOL = "compare_stages"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
SOUND = ("abcd", "abcd", "abcd")


def flown(make_run: MakeRun, *steps: tuple[str, str, str], **fields: Any) -> Run:
    """A captured step for each triple of generated, scored and trained names."""
    kept = {
        10 * (i + 1): FlightStep(
            10 * (i + 1), stages=Stages(*(tuple(names) for names in stages)), **fields
        )
        for i, stages in enumerate(steps)
    }
    return make_run(flight=Flight(list(kept), kept.__getitem__))


@pytest.mark.parametrize(
    ("stages", "counts"),
    [
        (SOUND, (0, 0, 0, 0)),
        (("abcd", "abcd", "dbca"), (0, 0, 0, 0)),  # shuffled for training
        (("abcd", "abcd", ""), (0, 0, 0, 0)),
        (("abcd", "dabc", "abcd"), (1, 0, 0, 0)),
        (("abcd", "abc", "abc"), (0, 1, 0, 0)),
        (("abcd", "abc", "abcd"), (0, 1, 1, 0)),
        (("abcd", "abcde", "abcd"), (0, 1, 0, 0)),
        (("abcd", "abcd", "abcda"), (0, 0, 0, 1)),
        (("aabb", "aabb", "abab"), (0, 0, 0, 0)),  # names of prompts, not of samples
        (("abcd", "abcd", "ab"), (0, 0, 0, 0)),  # filtered behind scoring
    ],
)
def test_what_happens_between_stages(
    make_run: MakeRun,
    measure: Measure,
    stages: tuple[str, str, str],
    counts: tuple[int, int, int, int],
) -> None:
    found = measure(TOOL, flown(make_run, SOUND, stages))
    names = ("steps_reordered", "steps_lost", "steps_unscored", "steps_trained_twice")
    assert tuple(found[name] for name in names) == counts
    onset = (10, 20) if any(counts) else (None, None)
    assert (found["last_good_step"], found["first_bad_step"]) == (
        onset if any(counts) else (20, None)
    )
    assert found["sampled"] is any(counts)


def test_samples_that_a_filter_takes_away_are_not_lost(make_run: MakeRun, measure: Measure) -> None:
    filtered = ("abcd", "abc", "abc")
    assert measure(TOOL, flown(make_run, filtered, filters="after"))["steps_lost"] == 0
    assert measure(TOOL, flown(make_run, filtered, filters="before"))["steps_lost"] == 1


@pytest.mark.parametrize(
    ("scored", "shift"), [("dabc", 1), ("bcda", -1), ("cdab", 2), ("badc", None), ("acbd", None)]
)
def test_a_constant_shift_is_named(
    make_run: MakeRun, measure: Measure, scored: str, shift: int | None
) -> None:
    found = measure(TOOL, flown(make_run, ("abcd", scored, "abcd"), ("abcd", scored, "abcd")))
    assert (found["shift"], found["from_start"]) == (shift, True)


def test_without_names(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "names its samples" in missing(TOOL, make_run())
    assert "names its samples" in missing(TOOL, flown(make_run, ("abcd", "", "abcd")))
