"""Complaints against the shipped playbook: each has its claim, and none is waved through."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from firstbad.agent.complaint_words import ALONE, PAIRS
from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.loader import load
from firstbad.playbooks.results import Verdict

UNJUDGED = {"tool_calls", "prompt_ignored", "few_samples", "is_normal", "asks"}
"""Complaints that nothing on disk answers, or that are a question about all of the run."""

# A complaint, the check that answers it, and what is asked for where it has no evidence.
ASKED = [
    ("Is the prompt trained?", "masks.captured", "loss_mask"),
    ("损失掩码是不是错了", "masks.captured", "loss_mask"),
    ("Log-probs look noisy since we use bf16", "numerics.grid", "float32"),
    ("KL looks odd", "probability.sampler", "1,500 tokens"),
    ("Entropy falls", "probability.sampler", "1,500 tokens"),
]


def told(run: Path, complaint: str) -> Verdict:
    done = investigate(str(run), complaint, out=run.parent / "incidents")
    assert isinstance(done, Finished)
    return done.verdict


@pytest.fixture
def run(repo: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repo / "tests" / "runs" / "siskin", tmp_path / "run"))


def test_every_symptom_has_a_claim_that_something_answers() -> None:
    claims = {c.symptom: c for c in load("crash").playbook.complaints}
    spoken = {*PAIRS.values(), *ALONE, "reward_rise_eval_down"} - UNJUDGED
    assert spoken == set(claims)
    assert [s for s, c in claims.items() if not (c.answered_by or c.answers)] == []


def test_checks_that_answer_ask_for_what_they_lack() -> None:
    book = load("crash").playbook
    checks = {f"{y.id}.{c.id}": c for y in book.layers for c in y.checks}
    named = {name for claim in book.complaints for name in claim.answered_by}
    assert [n for n in named if not checks[n].request and n != "reward.spikes"] == []


@pytest.mark.parametrize(("complaint", "check", "need"), ASKED)
def test_what_was_looked_at_is_answered_and_what_was_not_is_asked_for(
    run: Path, complaint: str, check: str, need: str
) -> None:
    whole = told(run, complaint)
    assert whole.outcome == "healthy"
    assert any(f"`{check}` (" in answer for answer in whole.answers)
    shutil.rmtree(run / "batch_dumps")
    bare = told(run, complaint)
    assert bare.outcome == "undetermined"
    assert f"`{check}` has no direct evidence" in bare.headline
    assert any(need in request.need for request in bare.requests)


@pytest.mark.parametrize("times", [1, 2])
def test_how_often_a_batch_is_trained_explains_the_clip_fraction(run: Path, times: int) -> None:
    settings = json.loads((run / "args.json").read_text())
    (run / "args.json").write_text(json.dumps({**settings, "num_iterations": times}))
    shutil.rmtree(run / "batch_dumps")
    found = told(run, "The clip fraction is not zero")
    assert found.outcome == "healthy"
    (answer,) = found.answers
    assert ("one update per batch" if times == 1 else "trained 2 times") in answer


@pytest.mark.parametrize(("share", "outcome"), [(1.0, "healthy"), (0.6, "undetermined")])
def test_a_norm_that_falls_without_its_advantages_stays_open(
    run: Path, share: float, outcome: str
) -> None:
    """What is lost after the loss was computed does not show in the loss."""
    state = json.loads((run / "trainer_state.json").read_text())
    for row in state["log_history"]:
        if "grad_norm" in row and row["step"] > 60:
            row["grad_norm"] *= share
    (run / "trainer_state.json").write_text(json.dumps(state))
    found = told(run, "grad_norm looks different in the second half")
    assert found.outcome == outcome
    assert any("single micro-batch" in r.need for r in found.requests) is (share < 1)


def test_a_rise_of_the_norm_that_is_none_is_told_so(run: Path) -> None:
    shutil.rmtree(run / "completions")  # without them the loss can't be recomputed
    answers = told(run, "The gradient norm exploded").answers
    assert any("no rise is logged" in answer for answer in answers)


def test_it_stopped_learning_is_open_without_right_answers(run: Path) -> None:
    complaint = "After step 90 it stopped learning"
    assert told(run, complaint).outcome == "healthy"
    shutil.rmtree(run / "data")
    bare = told(run, complaint)
    assert bare.outcome == "undetermined"
    assert any("right answers" in request.need for request in bare.requests)


def test_single_steps_answer_to_spikes_and_averages_do_not(run: Path) -> None:
    state = json.loads((run / "trainer_state.json").read_text())
    (answer,) = told(run, "KL looks spiky").answers
    assert "It is not so: no step stands out" in answer
    assert "averages" not in answer
    kl = [row for row in state["log_history"] if "kl" in row]
    kl[40]["kl"] = 50 * max(row["kl"] for row in kl)
    (run / "trainer_state.json").write_text(json.dumps(state))
    answers = told(run, "KL looks spiky").answers
    assert any(f"It is so. Step {kl[40]['step']} stands out most" in a for a in answers)


@pytest.mark.parametrize(("last", "holds"), [(1.2, "It is not so"), (0.9, None)])
def test_evaluations_are_answered_with_what_is_logged(
    run: Path, last: float, holds: str | None
) -> None:
    state = json.loads((run / "trainer_state.json").read_text())
    scores = [(20, 1.0), (40, 1.1), (60, 1.2), (80, last)]
    state["log_history"] += [{"step": s, "eval_reward": v} for s, v in scores]
    (run / "trainer_state.json").write_text(json.dumps(state))
    answer = next(a for a in told(run, "evals drop").answers if "evaluations fall" in a)
    assert f"is 1 at step 20, 1.2 at step 60 at best, and {last} at step 80" in answer
    assert ("It is not so" in answer) is (holds is not None)


@pytest.mark.parametrize("when", ["since the beginning", "at step 1", "at step 40", "at step 9000"])
def test_no_answer_speaks_of_a_number_that_is_not_there(
    repo: Path, tmp_path: Path, when: str
) -> None:
    run = Path(shutil.copytree(repo / "agent" / "demo_runs" / "heron", tmp_path / "run"))
    found = told(run, f"entropy falls and KL rises and the reward has spikes {when}")
    assert found.answers
    assert [answer for answer in found.answers if "unknown" in answer] == []
