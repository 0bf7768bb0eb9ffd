"""Seeds that begin again at a resume, of rows and of steps, and completions that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.flight import Flight, FlightStep
from firstbad.tools.run import RolloutBatch, Run

TOOL = "check_resumed_seeds"
RESUMED = [("resume", 21, "step goes back")]
MakeRun = Callable[..., Run]
Batch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def drawn(batch: Batch, step: int, of: int, texts: str = "abcd", **fields: Any) -> RolloutBatch:
    """A group of four, sampled as step `of` was."""
    completions = [f"answer of step {of} is {text}" for text in texts]
    return batch(step, rewards={"r": np.zeros(4)}, completions=completions, **fields)


def of_steps(seeds: Callable[[int], dict[str, object]]) -> Flight:
    return Flight(range(1, 31), lambda step: FlightStep(step, seeds=seeds(step)))


@pytest.mark.parametrize(("again", "known"), [(True, 21), (False, None)])
def test_seeds_of_rows_that_come_again_with_other_prompts(
    make_run: MakeRun, batch: Batch, measure: Measure, again: bool, known: int | None
) -> None:
    rollouts = []
    for step in range(1, 31):
        of = step - 20 if again and step > 20 else step
        rollouts.append(drawn(batch, step, step, seed=[f"{of}.{i}" for i in range(4)]))
    found = measure(TOOL, make_run(rollouts=rollouts, events=RESUMED))
    assert (found["reused_from_step"], found["by_row"], found["n_resumes"]) == (known, True, 1)
    assert (found["n_again"], found["same_share"], found["first_bad_step"]) == (0, None, None)


@pytest.mark.parametrize("by_row", [True, False])
def test_completions_that_come_again_with_their_seeds(
    make_run: MakeRun, batch: Batch, measure: Measure, by_row: bool
) -> None:
    rollouts, parts = [], {}
    for step in range(1, 31):
        of = (step - 1) % 20
        if by_row:
            parts = {"seed": [f"{of}.{i}" for i in range(4)]}
        said = "abcd" if step < 26 else "wxyz"
        rollouts.append(drawn(batch, step, of, said, prompts=[f"task {of}"] * 4, **parts))
    flight = of_steps(lambda step: {"python": 7, "sampler": (step - 1) % 20 + 1000})
    found = measure(
        TOOL, make_run(rollouts=rollouts, events=RESUMED, **({} if by_row else {"flight": flight}))
    )
    assert (found["reused_from_step"], found["by_row"]) == (21, by_row)
    # Ten steps of four rows: in five of them all four are the same again, and no neighbour's.
    assert (found["n_again"], found["same_share"], found["other_same_share"]) == (40, 0.5, 0)
    assert (found["last_good_step"], found["first_bad_step"]) == (20, 21)


def test_seeds_of_steps_that_go_on(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    rollouts = [drawn(batch, step, step) for step in range(1, 31)]
    run = make_run(rollouts=rollouts, events=RESUMED, flight=of_steps(lambda s: {"sampler": s}))
    assert measure(TOOL, run)["reused_from_step"] is None


def test_seeds_that_are_no_sequence_are_not_measured(
    make_run: MakeRun, batch: Batch, missing: Callable[..., str]
) -> None:
    rollouts = [drawn(batch, step, step) for step in range(1, 31)]
    never_varies = of_steps(lambda step: {"sampler": 7})
    of_two = of_steps(lambda step: {"sampler": step % 2})
    for flight in (never_varies, of_two, of_steps(lambda step: {})):
        run = make_run(rollouts=rollouts, events=RESUMED, flight=flight)
        assert "no seeds" in missing(TOOL, run)


@pytest.mark.parametrize(("ahead", "found_at"), [(0, 21), (1, 22), (3, 24), (4, None)])
def test_steps_sampled_ahead_of_the_resume(
    make_run: MakeRun, batch: Batch, measure: Measure, ahead: int, found_at: int | None
) -> None:
    rollouts = []
    for step in range(1, 31):
        of = step - 20 - ahead if step >= 21 + ahead else step
        rollouts.append(drawn(batch, step, step, seed=[f"{of}.{i}" for i in range(4)]))
    found = measure(TOOL, make_run(rollouts=rollouts, events=RESUMED))
    assert (found["reused_from_step"], found["comes_round"]) == (found_at, False)


def test_seeds_that_are_fixed_by_the_place_in_an_epoch(
    make_run: MakeRun, batch: Batch, measure: Measure
) -> None:
    """They come again at step 41 as well, where nothing was resumed."""
    rollouts = [
        drawn(batch, step, step, seed=[f"{(step - 1) % 20}.{i}" for i in range(4)])
        for step in range(1, 51)
    ]
    assert measure(TOOL, make_run(rollouts=rollouts, events=RESUMED))["comes_round"]


@pytest.mark.parametrize(
    ("prompt_of", "may_end"),
    [
        (lambda step: (step - 1) % 20, True),  # a pass of 20 ends where the resume is
        (lambda step: {21: 1, 22: 2}.get(step, step + 20), True),  # a pass in another order
        (lambda step: step % 4 if step > 2 else 9, False),  # prompts that come as they like
    ],
)
def test_where_an_epoch_may_have_ended(
    make_run: MakeRun,
    batch: Batch,
    measure: Measure,
    prompt_of: Callable[[int], int],
    may_end: bool,
) -> None:
    rollouts = [
        drawn(
            batch,
            step,
            (step - 1) % 20,
            seed=[f"{(step - 1) % 20}.{i}" for i in range(4)],
            prompts=[f"task {prompt_of(step)}"] * 4,
        )
        for step in range(1, 31)
    ]
    found = measure(TOOL, make_run(rollouts=rollouts, events=RESUMED))
    assert found["reused_from_step"] == 21
    assert found["epoch_may_end"] is may_end
