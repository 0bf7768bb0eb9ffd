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
    noisy = judged(simulate(1), BOTH_WAYS["at random"])
    assert not measure("compare_judges", noisy)["by_command"]  # one that was set aside
    assert measure("compare_judges", judged(simulate(1), right))["by_command"]


def early(run: Run, rows: int = 20, *, scored: float) -> list[tuple[int, int]]:
    """The first rows that a run's judge gave a score."""
    assert run.judge is not None
    return [key for key, score in run.judge.scores.items() if score == scored][:rows]


def test_one_that_breaks_is_not_used_even_without_gold_answers(
    simulate: MakeRun, judged: MakeRun, measure: Measure, missing: Callable[..., str]
) -> None:
    """From step 31 on it says 0; asked again about rows that were right, it says 0 as well."""

    def breaks(batch: RolloutBatch) -> Any:
        return right(batch) * float(batch.step < ONSET)

    sound = judged(simulate(1), right)
    changed = dict.fromkeys(early(sound, scored=1.0), 0.0)
    run = judged(simulate(1), breaks, changed)
    said = measure("read_judge", run)
    assert (said["broke"], said["n_again"], said["n_again_other"]) == (True, 20, 20)
    found = measure("rejudge", run)
    assert (found["command_set_aside"], found["first_bad_step"]) == (True, None)
    assert not measure("compare_judges", run)["by_command"]
    assert measure("take_stock", run)["judged"]
    for b in run.rollouts.batches():
        object.__setattr__(b, "gold", None)
    assert "right answers are known" in missing("rejudge", run)
    assert not measure("take_stock", run)["judged"]


def test_one_that_agrees_with_itself_is_used_and_gold_answers_speak_against_it(
    simulate: MakeRun, judged: MakeRun, measure: Measure
) -> None:
    """What it says from step 31 on may be true: it is stricter than a comparison of answers."""

    def strict(batch: RolloutBatch) -> Any:
        return right(batch) * float(batch.step < ONSET)

    same = judged(simulate(1), strict)
    run = judged(simulate(1), strict, dict.fromkeys(early(same, scored=1.0), 1.0))
    found = measure("rejudge", run)
    assert (found["by_command"], found["calibrated"]) == (True, True)
    assert (found["first_bad_step"], found["plain_agreement_after"]) == (ONSET, 1.0)
    dying = measure("rejudge", judged(simulate(1, edit=dead), right))
    assert (dying["first_bad_step"], dying["plain_agreement_after"] < 0.9) == (ONSET, True)


def test_gold_answers_judge_where_it_falls_silent(
    simulate: MakeRun, judged: MakeRun, measure: Measure
) -> None:
    def until(last: int) -> Judge:
        return lambda b: np.where(b.step <= last, right(b), np.nan)

    run = simulate(1, edit=dead)
    steps = max(b.step for b in run.rollouts.batches())
    early, late = judged(run, until(20)), judged(simulate(1, edit=dead), until(steps - 2))
    assert measure("read_judge", early)["silent_after"] == 20
    assert measure("rejudge", early)["command_set_aside"]
    assert measure("rejudge", early)["first_bad_step"] == ONSET
    assert not measure("rejudge", late)["command_set_aside"]
