"""Steps that break, and the samples that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.flight import Flight
from firstbad.tools.run import RolloutBatch, Run
from synthetic.recorded import sound_step

TOOL = "find_dirty_samples"
STEPS = 40

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def run_of(make_run: MakeRun, batch: MakeBatch) -> Callable[..., Run]:
    def make(
        dirty: Sequence[int], fails: Sequence[int], *, value: float = np.nan, pool: int = 60
    ) -> Run:
        """Prompts are drawn from a pool; `dirty` steps also hold one that no other step has."""
        rng = np.random.default_rng(0)
        rows = []
        for step in range(1, STEPS + 1):
            ids = [f"p{k}" for k in rng.choice(pool, 4, replace=False)]
            ids[0] = "p-dirty" if step in dirty else ids[0]
            rows.append(batch(step, rewards={"correct": [0.0, 1.0] * 4}, size=2,
                              prompt_id=[name for name in ids for _ in range(2)]))  # fmt: skip
        norm = np.ones(STEPS)
        norm[np.array(fails, int) - 1] = value
        return make_run(rollouts=rows, signals={"grad_norm_preclip": norm})

    return make


@pytest.mark.parametrize("value", [np.nan, np.inf, 25.0])
def test_one_prompt_at_every_failure(
    run_of: Callable[..., Run], measure: Measure, value: float
) -> None:
    found = measure(TOOL, run_of([6, 17, 29], [6, 17, 29], value=value))
    assert (found["n_failures"], found["failures_with"], found["sound_with"]) == (3, 3, 0)
    # One name in 3 of 40 steps hits all three with chance 1 / C(40, 3); 44 come more than once.
    assert found["chance"] == pytest.approx(44 / 9880)
    assert (found["n_shared"], found["first_bad_step"], found["last_good_step"]) == (1, 6, 5)


def test_the_shared_sample_is_named(run_of: Callable[..., Run], evidence: Any) -> None:
    assert evidence(TOOL, run_of([6, 17, 29], [6, 17, 29])).quote == "Named: prompt `p-dirty`."
    assert evidence(TOOL, run_of([6, 17, 29], [])).quote == ""


def test_failures_elsewhere(run_of: Callable[..., Run], measure: Measure) -> None:
    found = measure(TOOL, run_of([6, 17, 29], [9, 21, 33]))
    assert found["n_failures"] == 3
    assert found["chance"] > 0.05
    found = measure(TOOL, run_of([6, 17, 29], []))
    assert (found["n_failures"], found["share_of_failures"], found["chance"]) == (0, 0.0, 1.0)


def test_a_prompt_that_sound_steps_have_as_often(
    run_of: Callable[..., Run], measure: Measure
) -> None:
    found = measure(TOOL, run_of(range(5, 35), [6, 17, 29]))
    assert found["chance"] > 0.05


def test_a_stretch_of_failures_is_one(run_of: Callable[..., Run], measure: Measure) -> None:
    found = measure(TOOL, run_of([10], range(10, 41)))
    assert found["n_failures"] == 1


def test_a_named_batch_that_comes_back(
    make_run: MakeRun, measure: Measure, missing: Callable[..., str]
) -> None:
    fails = (4, 14, 24)
    steps = {
        s: replace(sound_step(s), batch="b-again" if s in fails else f"b{s}") for s in range(1, 31)
    }
    norm = [100.0 if s in fails else 1.0 for s in steps]
    flight = Flight(list(steps), steps.__getitem__)
    found = measure(TOOL, make_run(flight=flight, signals={"grad_norm_preclip": norm}))
    assert (found["failures_with"], found["sound_with"], found["is_batch"]) == (3, 0, True)
    assert found["chance"] < 0.001
    bare = make_run(signals={"grad_norm_preclip": norm})
    assert "fewer than five steps whose samples" in missing(TOOL, bare)
