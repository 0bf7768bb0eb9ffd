"""Resumes, errors and warnings, and failures of scoring that the log speaks of."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Run

TOOL = "list_events"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]

EVENTS = [
    ("resume", 20, "resumed from checkpoint-20"),
    ("resume", 40, "resumed from checkpoint-40"),
    ("warning", 41, "verifier timeout after 30 s, reward set to 0"),
    ("warning", 42, "verifier timeout after 31 s, reward set to 0"),
    ("warning", 42, "verifier timeout after 32 s, reward set to 0"),
    ("error", None, "CUDA error on rank 3"),
    ("end", 60, "train_runtime"),
]


def test_counts_and_the_first_scoring_failure(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(events=EVENTS))
    assert found["n_events"] == 7
    assert found["n_resumes"] == 2
    assert (found["first_resume_step"], found["last_resume_step"]) == (20, 40)
    assert (found["n_errors"], found["n_warnings"], found["ended"]) == (1, 3, True)
    # Two steps, 41 and 42, though 42 speaks of it twice.
    assert found["scoring_failure_steps"] == 2
    assert (found["last_good_step"], found["first_bad_step"]) == (40, 41)
    assert not found["from_start"]


def test_an_alarm_of_a_recorder_is_no_fault(make_run: MakeRun, measure: Measure) -> None:
    """It says that a figure left its bounds, and nothing of why."""
    alarm = ("alarm", 41, "verifier timeout share above 0.5 since step 39")
    found = measure(TOOL, make_run(events=[alarm]))
    assert found["n_events"] == 1
    assert (found["n_errors"], found["n_warnings"], found["n_resumes"]) == (0, 0, 0)
    assert found["scoring_failure_steps"] == found["n_settings_changed"] == 0


def test_the_last_error_is_quoted_in_one_harmless_line(
    make_run: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    def quote(*events: tuple[Any, ...]) -> str:
        return evidence(TOOL, make_run(events=events)).quote

    assert quote(*EVENTS) == "The log says: `CUDA error on rank 3`."
    assert quote(*EVENTS[:5]) == ""
    assert quote(("error", 3, "a"), ("error", 9, "`x`\n\x1b[2J  y")) == "The log says: `x [2J y`."
    assert len(quote(("error", 3, "long " * 99))) < 200


def test_events_are_grouped_by_text_without_its_digits(
    make_run: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    rows = evidence(TOOL, make_run(events=EVENTS)).tables[0].rows
    assert rows[0][0] == "warning"
    assert rows[0][2:] == (3, 41, 42)
    assert ("error", "CUDA error on rank 3", 1, None, None) in rows


@pytest.mark.parametrize(
    "text",
    [
        "Reward service unavailable (503), using fallback",
        "grader: connection refused",
        "sandbox worker killed",
        "judge: 429 Too Many Requests",
        "scoring failed for 3 of 64 rows",
        "rubric request hit its deadline",
        "verifier timed out after 30 s",
        "the reward service returned 503.",
    ],
)
def test_what_a_scoring_failure_reads_like(make_run: MakeRun, measure: Measure, text: str) -> None:
    found = measure(TOOL, make_run(events=[("warning", 1, text)]))
    assert found["scoring_failure_steps"] == 1
    assert (found["first_bad_step"], found["from_start"]) == (1, True)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("warning", "tokenizer: padding side is right"),
        ("warning", "NCCL timeout on rank 3"),
        ("warning", "the reward model is in eval mode"),
        ("config_change", "verifier timeout raised to 60 s"),
        ("phase", "reward stage failed over to math"),
        ("warning", "reward mean 0.5031 over 64 rows"),
        ("warning", "rewards: 15000 rows scored in 12.503 s"),
    ],
)
def test_what_is_no_scoring_failure(
    make_run: MakeRun, measure: Measure, kind: str, text: str
) -> None:
    found = measure(TOOL, make_run(events=[(kind, 5, text)]))
    assert found["scoring_failure_steps"] == 0
    assert found["first_bad_step"] is None


def test_a_silent_log_is_a_measurement(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run())
    assert found["n_events"] == 0
    assert found["first_resume_step"] is None
    assert not found["ended"]


def test_a_failure_without_a_step_cannot_be_dated(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(events=[("error", None, "verifier failed")]))
    assert (found["n_errors"], found["scoring_failure_steps"]) == (1, 0)


@settings(max_examples=20, derandomize=True)
@given(st.permutations(range(len(EVENTS))), st.integers(0, 5000))
def test_order_does_not_matter_and_dates_move_with_the_steps(
    make_run: MakeRun, measure: Measure, changed: SimpleNamespace, order: list[int], by: int
) -> None:
    before = measure(TOOL, make_run(events=EVENTS))
    run = make_run(events=[EVENTS[i] for i in order])
    assert measure(TOOL, run) == before
    assert measure(TOOL, changed.shift_steps(run, by)) == changed.dates_moved(before, by)


@pytest.mark.parametrize(
    ("step", "text", "n"),
    [
        (20, "beta: 0.02 -> 0.05", 1),
        (20, "trl: 1.15.0 -> 1.16.0, beta: 0.02 -> 0.05", 1),
        (20, "save_steps: 50 -> 20", 0),
        (20, "logging_steps: 1 -> 5, output_dir: a -> b", 0),
        (20, "logging_steps: 1 -> 5, loss_type: grpo -> dapo", 1),
        (20, "the learning rate was lowered by hand", 1),
        (None, "beta: 0.02 -> 0.05", 0),  # between files, at no step of the run
    ],
)
def test_settings_that_the_steps_depend_on(
    make_run: MakeRun, measure: Measure, step: int | None, text: str, n: int
) -> None:
    found = measure(TOOL, make_run(events=[("config_change", step, text)]))
    assert found["n_settings_changed"] == n
