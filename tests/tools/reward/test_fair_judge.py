"""A judge of the user's that is not fair: set aside, or read for its direction alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import RolloutBatch, Run

ONSET = 31
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Judge = Callable[[RolloutBatch], Any]


def right(batch: RolloutBatch) -> np.ndarray[Any, Any]:
    assert batch.gold is not None
    pairs = zip(batch.gold, batch.completions, strict=True)
    return np.array([f" {gold} " in f" {text.replace('</answer>', ' ')} " for gold, text in pairs])


def coins(batch: RolloutBatch, size: int) -> Any:
    return np.random.default_rng(batch.step).random(size)


def dead(d: SimpleNamespace) -> None:
    if d.step >= ONSET:
        d.rewards["correct"][:] = 0


BOTH_WAYS: dict[str, Judge] = {
    "in another order": lambda b: np.roll(right(b), 1),
    "less for better": lambda b: -1.0 * right(b),
    "at random": lambda b: coins(b, len(b)),
    "with noise": lambda b: right(b) ^ (coins(b, len(b)) < 0.15),
}
NO_THRESHOLD: dict[str, Judge] = {
    "all the same": lambda b: np.ones(len(b)),
    "of another kind": lambda b: [float(len(text)) for text in b.completions],
}


@pytest.mark.parametrize("edit", [None, dead])
@pytest.mark.parametrize("name", [*BOTH_WAYS, *NO_THRESHOLD])
def test_gold_answers_judge_where_it_tells_nothing(
    simulate: MakeRun, judged: MakeRun, measure: Measure, name: str, edit: Any
) -> None:
    run = simulate(1) if edit is None else simulate(1, edit=edit)
    own = judged(run, (BOTH_WAYS | NO_THRESHOLD)[name])
    found, plain = measure("rejudge", own), measure("rejudge", run)
    assert found["command_set_aside"]
    assert found["command_has_threshold"] == (name in BOTH_WAYS)
    assert (found["command_agreement"] is None) == (name in NO_THRESHOLD)
    of_it = {k for k in found if k.startswith("command")} | {"plain_agreement"}
    assert {k: v for k, v in found.items() if k not in of_it} == {
        k: v for k, v in plain.items() if k not in of_it
    }
    assert found["first_bad_step"] == (None if edit is None else ONSET)


def test_a_fair_one_and_one_that_errs_one_way_are_kept(
    simulate: MakeRun, judged: MakeRun, measure: Measure
) -> None:
    fair = measure("rejudge", judged(simulate(1), right))
    assert (fair["by_command"], fair["command_set_aside"]) == (True, False)
    assert fair["plain_agreement"] is None
    strict = measure("rejudge", judged(simulate(1), lambda b: right(b) & (coins(b, len(b)) < 0.6)))
    assert (strict["by_command"], strict["command_set_aside"]) == (True, False)
    assert strict["plain_agreement"] == 1  # speaks against what it says
    assert strict["from_start"]
    assert strict["last_bad_step"] is None  # though wrong answers grow fewer


def test_without_gold_answers_there_is_no_other(
    simulate: MakeRun, judged: MakeRun, measure: Measure, missing: Callable[..., str]
) -> None:
    for judge in (BOTH_WAYS["in another order"], NO_THRESHOLD["all the same"]):
        run = judged(simulate(1), judge)
        for b in run.rollouts.batches():
            object.__setattr__(b, "gold", None)
        if judge is BOTH_WAYS["in another order"]:
            found = measure("rejudge", run)
            assert (found["by_command"], found["command_set_aside"]) == (True, False)
        else:
            assert "same score" in missing("rejudge", run)


def test_less_for_better_is_no_fall_of_the_judge(
    simulate: MakeRun, judged: MakeRun, measure: Measure
) -> None:
    run = judged(simulate(1), BOTH_WAYS["less for better"])
    assert not measure("compare_judges", run)["by_command"]
    assert measure("compare_judges", judged(simulate(1), right))["by_command"]
