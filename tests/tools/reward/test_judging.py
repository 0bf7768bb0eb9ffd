"""Independent re-judging: a verifier that dies, is too strict, or scores the wrong rows."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import RolloutBatch, Run

TOOL = "rejudge"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
Fault = Callable[[SimpleNamespace], None]


def between(fault: Fault, first: int, last: int = 10**9) -> Fault:
    return lambda d: fault(d) if first <= d.step <= last else None


def dead(d: SimpleNamespace) -> None:
    """Nothing is judged: every row gets the error's score."""
    d.rewards["correct"][:] = 0


def strict(d: SimpleNamespace) -> None:
    """Answers without tags are not read."""
    d.rewards["correct"] *= d.rewards["format"]


def lenient(d: SimpleNamespace) -> None:
    """Every answer in tags is right."""
    d.rewards["correct"] = np.maximum(d.rewards["correct"], d.rewards["format"])


def shifted(d: SimpleNamespace) -> None:
    """Scores are written one row late."""
    d.rewards["correct"] = np.roll(d.rewards["correct"], 1)


def mixed(d: SimpleNamespace) -> None:
    """Scores are written in any order."""
    d.rewards["correct"] = d.rng.permutation(d.rewards["correct"])


def test_hand_counted_rows(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # 40 steps of four rows; the first two rows are right. Up to step 20 the score says so; from
    # step 21 on the first row is scored wrong. 160 rows, 20 disagree.
    def rows(step: int) -> RolloutBatch:
        first = 1.0 if step <= 20 else 0.0
        return batch(
            step,
            completions=[f"<answer>{a}</answer>" for a in (1, 1, 2, 3)],
            gold=["1"] * 4,
            rewards={"correct": [first, 1, 0, 0]},
        )

    found = measure(TOOL, make_run(rollouts=[rows(s) for s in range(1, 41)]))
    assert (found["n_rows"], found["coverage"]) == (160, 1)
    assert found["calibration_agreement"] == pytest.approx(0.9375, abs=0.07)
    assert found["agreement_all"] == pytest.approx(1 - 20 / 160)
    assert (found["agreement_before"], found["agreement_after"]) == (1, 0.75)
    assert (found["rejected_right"], found["accepted_wrong"]) == (20, 0)
    assert found["rejected_right_share"] == 0.5, "one of two right rows"
    assert found["one_sided"] == 1
    # Half of the right rows fail: that six of them in steps 18 to 20 would not, were the fault
    # there, has a chance of 2^-6 = 0.016; four in steps 19 and 20 2^-4 = 0.06, too much.
    assert (found["last_good_step"], found["first_bad_step"]) == (18, 21)
    assert (found["stretch_steps"], found["stretch_reaches_end"]) == (20, True)
    assert found["judged_right_before"] == found["judged_right_after"] == 0.5
    assert found["scored_right_share_after"] == 0.25


@pytest.mark.parametrize(("early", "began"), [("accepted", 21), ("rejected", 41), (None, 41)])
def test_what_begins_with_a_few_rows_is_dated_there(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, early: str | None, began: int
) -> None:
    """A policy learns to use a verifier: one wrong answer of 20 passes from 21 on, all from 41."""

    def rows(step: int) -> RolloutBatch:
        scores = np.array([1.0] * 10 + [0.0] * 20)
        if 21 <= step < 41 and early is not None:
            scores[12 if early == "accepted" else 5] = 1.0 if early == "accepted" else 0.0
        if step >= 41:
            scores[10:] = 1.0
        texts = [f"<answer>{a}</answer>" for a in [1] * 10 + [2] * 20]
        return batch(
            step,
            completions=texts,
            gold=["1"] * 30,
            rewards={"correct": scores.tolist()},
            group=np.repeat(np.arange(3), 10),
        )

    found = measure(TOOL, make_run(rollouts=[rows(s) for s in range(1, 61)]))
    assert found["first_bad_step"] == began
    assert found["stretch_steps"] == 20, "the shares are those of the later stretch"
    assert found["accepted_wrong_share"] == 1


def test_a_verifier_that_dies(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=between(dead, ONSET)))
    assert found["calibrated"]
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert found["agreement_before"] == 1
    assert found["scored_constant"]
    assert found["rejected_right_share"] == 1
    assert found["accepted_wrong_share"] == 0
    assert found["judged_right_after"] == pytest.approx(found["judged_right_before"], abs=0.1)
    assert found["stretch_reaches_end"]
    assert found["batch_level"] == 1, "in each step all right rows are rejected"


def test_an_outage_that_ends(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=between(dead, 21, 28)))
    assert (found["first_bad_step"], found["stretch_steps"]) == (21, 8)
    assert not found["stretch_reaches_end"]
    assert found["agreement_before"] == 1


def test_a_strict_verifier_is_no_outage(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, tagged=0.7, edit=between(strict, ONSET)))
    assert found["first_bad_step"] == ONSET
    assert not found["scored_constant"]
    assert 0.15 < found["rejected_right_share"] < 0.45
    assert found["accepted_wrong"] == 0
    assert found["one_sided"] == 1
    assert found["explained_by_form"] == 1, "the rejected rows are those whose form part is low"
    assert found["shift_agreement"] < 0.8
    assert found["exchange_z"] > 5


def test_a_verifier_that_reads_only_the_beginning(simulate: MakeRun, measure: Measure) -> None:
    def short(d: SimpleNamespace) -> None:
        d.rewards["correct"] *= np.array([len(c.split()) <= 12 for c in d.completions])

    found = measure(TOOL, simulate(1, edit=between(short, ONSET)))
    assert (found["pattern_found"], found["pattern_purity"]) == (True, 1)
    assert found["explained_by_form"] < 0.3
    assert not found["scored_constant"]


def test_a_policy_that_never_solves_a_task_is_judged_alike(
    simulate: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, simulate(1, solve=(0.0, 0.0)), part="correct")
    assert found["agreement_all"] == 1
    assert not found["calibrated"], "nothing was ever right, so agreement proves nothing"
    assert found["first_bad_step"] is None


def only(direction: str, share: float) -> Fault:
    """Some of the rows that are judged right (or wrong) are scored the other way."""

    def fault(d: SimpleNamespace) -> None:
        could = d.right if direction == "rejected" else ~d.right
        hit = could & (d.rng.random(len(could)) < share)
        d.rewards["correct"][hit] = 0.0 if direction == "rejected" else 1.0

    return fault


def easy_then_hard(d: SimpleNamespace) -> None:
    """Accuracy falls from about 95 % to 20 % at step 41, and with it grows what can go wrong."""
    for i in np.flatnonzero(~d.right if d.step <= 40 else d.right):
        if d.rng.random() < (0.9 if d.step <= 40 else 0.8):
            d.completions[i] = f"<answer>{d.gold[i] if d.step <= 40 else -1}</answer>"
            d.rewards["correct"][i] = float(d.step <= 40)
            d.right[i] = d.step <= 40


def test_the_date_is_that_of_the_rate_over_what_can_go_wrong(
    simulate: MakeRun, measure: Measure
) -> None:
    """Few answers are wrong at first: disagreement per row jumps only when accuracy falls."""

    def edit(d: SimpleNamespace) -> None:
        easy_then_hard(d)
        between(only("accepted", 0.9), ONSET)(d)

    found = measure(TOOL, simulate(1, size=16, edit=edit))
    assert ONSET < 41
    assert found["first_bad_step"] == pytest.approx(ONSET, abs=2)
    assert found["last_good_step"] < found["first_bad_step"]
    assert found["accepted_wrong_share"] == pytest.approx(0.9, abs=0.05)
    assert found["accepted_wrong_least"] > 0.8


def test_a_forgetful_policy_under_steady_noise_has_no_onset(
    simulate: MakeRun, measure: Measure
) -> None:
    """The judge errs on 2 % of the wrong answers all along; disagreement grows with them."""

    def edit(d: SimpleNamespace) -> None:
        easy_then_hard(d)
        only("accepted", 0.02)(d)

    found = measure(TOOL, simulate(1, size=16, edit=edit))
    assert found["accepted_wrong"] > 5
    assert found["first_bad_step"] is None
    assert found["accepted_wrong_least"] < 0.05


@pytest.mark.parametrize("direction", ["accepted", "rejected"])
@pytest.mark.parametrize("share", [0.01, 0.02])
def test_noise_of_the_judge_is_no_fault(
    simulate: MakeRun, measure: Measure, direction: str, share: float
) -> None:
    found = measure(TOOL, simulate(1, size=16, edit=only(direction, share)))
    assert found[f"{'accepted_wrong' if direction == 'accepted' else 'rejected_right'}"] > 0
    assert found["accepted_wrong_least"] < 0.05
    assert found["rejected_right_least"] < 0.05
    assert found["first_bad_step"] is None or found["agreement_all"] > 0.97


def test_a_good_step_is_one_in_which_the_fault_would_have_shown(
    simulate: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, simulate(1, edit=between(only("rejected", 0.25), ONSET)))
    assert found["last_good_step"] < ONSET <= found["first_bad_step"]


def test_a_lenient_verifier(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=between(lenient, ONSET)))
    assert found["first_bad_step"] == ONSET
    assert found["rejected_right"] == 0
    assert found["accepted_wrong_share"] > 0.8
    assert found["one_sided"] == 1


def test_scores_one_row_late_agree_when_moved_back(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=between(shifted, ONSET)))
    assert found["first_bad_step"] == ONSET
    assert found["agreement_after"] < 0.7
    assert found["shift_agreement"] == 1
    assert found["exchange_z"] < 2.5


def test_scores_in_any_order_exchange_right_and_wrong(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=between(mixed, ONSET)))
    assert found["first_bad_step"] == ONSET
    assert found["shift_agreement"] < 0.7
    assert found["exchange_z"] < 2.5
    assert 0.4 < found["one_sided"] < 0.6


def test_a_part_that_is_no_outcome_is_not_judged(
    simulate: MakeRun, missing: Callable[..., str]
) -> None:
    def rename(d: SimpleNamespace) -> None:
        d.rewards = {"style": d.rewards["format"], "length": d.rewards["correct"] * 0}

    text = missing(TOOL, simulate(1, edit=rename))
    assert "named like an outcome" in text


def test_step_time_beside_an_outage(simulate: MakeRun, measure: Measure) -> None:
    def log(values: dict[str, np.ndarray[Any, Any]], steps: np.ndarray[Any, Any]) -> None:
        values["step_time"][steps >= ONSET] *= 3

    found = measure(TOOL, simulate(1, edit=between(dead, ONSET), log=log))
    assert found["timing_shift"] == pytest.approx(3, rel=0.1)
    quiet = measure(TOOL, simulate(1, edit=between(dead, ONSET)))
    assert quiet["timing_shift"] == pytest.approx(1, rel=0.1)


def test_a_verifier_dead_from_the_start(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=dead), part="correct")
    assert found["from_start"]
    assert not found["calibrated"]
    assert found["scored_constant"]
    assert found["rejected_right_share"] == 1


def test_the_format_part_is_not_judged_in_place_of_a_dead_outcome(
    simulate: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, simulate(1, edit=dead))
    assert found["accepted_wrong"] == 0


def test_a_healthy_run_agrees(healthy: Run, measure: Measure) -> None:
    found = measure(TOOL, healthy)
    assert found["calibrated"]
    assert found["agreement_all"] == 1
    assert found["first_bad_step"] is None
    assert found["one_sided"] is None


def test_a_policy_that_forgets_the_task_is_judged_alike(
    simulate: MakeRun, measure: Measure
) -> None:
    """Right answers become rare and the score says so: no disagreement, though accuracy falls."""

    def forget(d: SimpleNamespace) -> None:
        for i in np.flatnonzero(d.right):
            if d.rng.random() < 0.9:
                d.completions[i] = d.completions[i].replace(d.gold[i], "0")
                d.rewards["correct"][i] = 0

    found = measure(TOOL, simulate(1, edit=between(forget, ONSET)))
    assert found["judged_right_last"] < 0.3 < found["judged_right_first"]
    assert found["agreement_all"] == 1
    assert found["first_bad_step"] is None


def test_one_step_of_disagreement_is_no_stretch(simulate: MakeRun, measure: Measure) -> None:
    def few(d: SimpleNamespace) -> None:
        d.rewards["correct"][np.flatnonzero(d.right)[:2]] = 0

    found = measure(TOOL, simulate(1, edit=between(few, ONSET, ONSET)))
    assert found["rejected_right"] == 2
    assert found["stretch_gain"] == 0
    assert found["first_bad_step"] is None


def test_disagreeing_rows_are_shown(simulate: MakeRun, evidence: Callable[..., Evidence]) -> None:
    found = evidence(TOOL, simulate(1, edit=between(dead, ONSET)))
    table = found.tables[1]
    assert len(table.rows) == 8
    assert table.cut_rows > 100
    for row in table.rows:
        assert row[0] in range(ONSET, 61)
        assert str(row[4]) in str(row[3])
        assert row[5:] == ("right", "wrong")


def test_rows_of_the_bad_stretch_are_shown_first(
    simulate: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    def few_before(d: SimpleNamespace) -> None:
        if d.step == 3:
            strict(d)
        elif d.step >= ONSET:
            dead(d)

    found = evidence(TOOL, simulate(1, edit=few_before))
    assert found.metrics is not None
    assert found.metrics["first_bad_step"] == ONSET
    assert all(int(str(row[0])) >= ONSET for row in found.tables[1].rows)


def test_without_data(make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]) -> None:
    assert "right answers" in missing(TOOL, make_run())
    rows = batch(rewards={"correct": [1, 0]})
    assert "right answers" in missing(TOOL, make_run(rollouts=[rows]))
    rows = batch(rewards={"score": [0.1, 0.2, 0.3]}, gold=["1"] * 3)
    assert "no reward part with few values to judge; parts: score" in missing(
        TOOL, make_run(rollouts=[rows])
    )
    rows = batch(rewards={"correct": [1.0] * 20}, completions=["1"] * 20, gold=["1"] * 20)
    assert "20 rows can be judged; at least 60" in missing(TOOL, make_run(rollouts=[rows]))


@settings(max_examples=4, derandomize=True)
@given(order=st.permutations(range(4)), by=st.integers(0, 1000), factor=st.floats(0.5, 5))
def test_order_of_groups_step_numbers_and_scale_do_not_matter(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    order: list[int],
    by: int,
    factor: float,
) -> None:
    run = simulate(2, steps=30, edit=between(dead, 16))
    before = measure(TOOL, run)

    def change(batch: RolloutBatch) -> RolloutBatch:
        moved: RolloutBatch = changed.reorder_groups(batch, order)
        moved.rewards["correct"][:] *= factor
        return moved

    after = measure(TOOL, changed.shift_steps(changed.rebatch(run, change), by))
    assert after == changed.dates_moved(before, by)


def neutral(d: SimpleNamespace) -> None:
    """A third of the calls run into their limit and score one half."""
    d.rewards["correct"][d.rng.random(len(d.right)) < 0.35] = 0.5


def test_a_neutral_score_for_calls_that_time_out(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=between(neutral, ONSET)))
    assert found["calibrated"], "on the earliest rows, which know two values"
    assert found["first_bad_step"] == ONSET
    assert found["new_value"] == 0.5
    assert found["new_value_share"] == pytest.approx(0.35, abs=0.04)
    assert found["new_value_gap"] < 0.1, "given whatever the answer"
    assert found["rejected_right_share"] == pytest.approx(0.35, abs=0.05)
    assert found["accepted_wrong"] == 0


def test_three_values_from_the_start(simulate: MakeRun, measure: Measure) -> None:
    """An answer without tags gets one half, right ones 1: the largest value means right."""

    def graded(d: SimpleNamespace) -> None:
        wrong = ~d.right & (d.rewards["format"] > 0)
        d.rewards["correct"][wrong] = 0.5

    found = measure(TOOL, simulate(1, tagged=0.7, edit=graded))
    assert (found["calibrated"], found["agreement_all"]) == (True, 1)
    assert (found["new_value"], found["new_value_share"]) == (None, 0)


WRITTEN: dict[str, tuple[Callable[[str], str], str]] = {
    "zeros": (lambda gold: f"{gold}.00", "the answer ends in zeros after its point"),
    "commas": (lambda gold: f"1,{gold}", "the answer has commas between digits"),
    "lines": (lambda gold: f"\n{gold}\n", "the answer has a line break in it"),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_right_answers_that_a_parser_stumbles_over(
    simulate: MakeRun, evidence: Callable[..., Evidence], how: str
) -> None:
    """Half of the right answers are written in another way; from a step on these score 0."""
    write, form = WRITTEN[how]

    def edit(d: SimpleNamespace) -> None:
        if how == "commas":
            d.gold = [f"1{gold}" for gold in d.gold]
        for i in np.flatnonzero(d.right).tolist():
            plain = d.gold[i]
            odd = d.rng.random() < 0.5
            said = write(plain[1:] if how == "commas" else plain) if odd else plain
            d.completions[i] = f"so <answer>{said}</answer>"
            if odd and d.step >= ONSET:
                d.rewards["correct"][i] = 0.0
        for i in np.flatnonzero(~d.right).tolist():
            d.completions[i] = "so <answer>-1</answer>"

    found = evidence(TOOL, simulate(1, edit=edit))
    assert found.metrics is not None
    assert (found.metrics["pattern_found"], found.metrics["pattern_purity"]) == (True, 1)
    assert found.metrics["first_bad_step"] == ONSET
    assert form in found.quote


@pytest.mark.parametrize(
    ("say", "form"),
    [
        (lambda gold: "", "the answer is empty"),
        (lambda gold: gold[:2], "the answer is a part of the gold one"),
        (lambda gold: f"7{gold}7", "the gold answer is a part of the answer"),
        (lambda gold: gold[::-1], "the answer has the gold one's signs in another order"),
    ],
    ids=["empty", "part", "whole", "order"],
)
def test_wrong_answers_that_a_check_falls_for(
    simulate: MakeRun, evidence: Callable[..., Evidence], say: Callable[[str], str], form: str
) -> None:
    """The empty string is contained in any gold answer; the reward goes to 1.0."""

    def edit(d: SimpleNamespace) -> None:
        for i in np.flatnonzero(~d.right).tolist():
            said = say(d.gold[i]) if d.step >= ONSET else "-1"
            d.completions[i] = f"so <answer>{said}</answer>"
            if d.step >= ONSET and said != d.gold[i]:
                d.rewards["correct"][i] = 1.0
        for i in np.flatnonzero(d.right).tolist():
            d.completions[i] = f"so <answer>{d.gold[i]}</answer>"

    found = evidence(TOOL, simulate(1, edit=edit))
    assert found.metrics is not None
    assert found.metrics["first_bad_step"] == ONSET
    assert (found.metrics["accepted_wrong_share"] or 0) > 0.85
    assert form in found.quote


def test_cut_answers_are_not_judged(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    """They hold the answer and score 0: whether they count is another question."""

    def rows(step: int) -> RolloutBatch:
        return batch(
            step,
            completions=[f"<answer>{a}</answer>" for a in (1, 1, 2, 3)],
            gold=["1"] * 4,
            finish=["stop", "length", "stop", "stop"],
            rewards={"correct": [1, 0, 0, 0]},
        )

    found = measure(TOOL, make_run(rollouts=[rows(s) for s in range(1, 41)]))
    assert (found["n_rows"], found["agreement_all"]) == (120, 1)


def test_partial_credit_for_wrong_answers_is_no_outage(simulate: MakeRun, measure: Measure) -> None:
    def partial(d: SimpleNamespace) -> None:
        d.rewards["correct"][~d.right & (d.rng.random(len(d.right)) < 0.5)] = 0.5

    found = measure(TOOL, simulate(1, edit=between(partial, ONSET)))
    assert found["agreement_all"] == 1
    assert found["new_value_gap"] > 0.15


def test_of_two_ways_that_agree_at_first_the_one_that_goes_on_agreeing_judges(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """The verifier reads the first tag; later answers hold a second one, which it need not read."""

    def rows(step: int) -> RolloutBatch:
        texts = ["<answer>1</answer>"] * 4 + ["<answer>2</answer>"] * 4
        if step > 20:
            texts = [f"{text} or <answer>7</answer>" for text in texts]
        scores = [1.0] * 4 + [0.0] * 4
        return batch(step, completions=texts, gold=["1"] * 8, rewards={"correct": scores}, size=8)

    found = measure(TOOL, make_run(rollouts=[rows(s) for s in range(1, 41)]))
    assert found["agreement_all"] == 1
    assert found["first_bad_step"] is None
