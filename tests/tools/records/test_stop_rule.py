"""Generation that runs on behind the end of the answers; lengths that change for other reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firstbad.tools.run import Run

TOOL = "check_stop_rule"
ONSET, CAP = 31, 64.0

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Values = dict[str, npt.NDArray[np.float64]]
Steps = npt.NDArray[np.float64]


def runs_on(values: Values, steps: Steps) -> None:
    late = steps >= ONSET
    values["completion_length_mean"][late] = CAP
    values["truncation_rate"][late] = 1.0


def rambles(draft: SimpleNamespace) -> None:
    if draft.step >= ONSET:
        draft.completions = [f"{text} {'so then ' * 30}" for text in draft.completions]
        draft.n_tokens = np.full(len(draft.completions), int(CAP))


def grows(values: Values, steps: Steps) -> None:
    values["completion_length_mean"] = np.minimum(10 + steps, CAP)
    values["truncation_rate"] = np.clip((steps - 30) / 30, 0, 1)


def test_rows_that_fill_up_with_what_is_no_text(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, log=runs_on))
    assert (found["truncated_before"], found["truncated_after"]) == (0, 1)
    assert found["truncated_leap"] == 1
    assert found["length_rise"] > 3
    assert found["text_rise"] == pytest.approx(1, abs=0.1)
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)


def test_a_model_that_rambles_writes_text(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=rambles, log=runs_on))
    assert found["truncated_leap"] == 1
    assert found["text_rise"] > 3


def test_line_breaks_are_text_too(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace
) -> None:
    """A collapse to white space: no more words, yet more text."""
    run = changed.rebatch(
        simulate(1, log=runs_on),
        lambda b: replace(
            b, completions=[t + "\n" * 200 * (b.step >= ONSET) for t in b.completions]
        ),
    )
    assert measure(TOOL, run)["text_rise"] > 3


def test_growth_into_the_cap_does_not_leap(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, log=grows))
    assert found["truncated_leap"] < 0.1
    assert found["first_bad_step"] is None


def test_a_sound_run_has_no_date(healthy: Run, measure: Measure) -> None:
    found = measure(TOOL, healthy)
    assert found["length_rise"] == pytest.approx(1, abs=0.1)
    assert found["first_bad_step"] is None


def test_what_is_missing_is_said(
    simulate: MakeRun,
    make_run: MakeRun,
    missing: Callable[..., str],
    changed: SimpleNamespace,
) -> None:
    run = simulate(1, log=runs_on)
    assert "truncated" in missing(TOOL, changed.relog(run, truncation_rate=None))
    assert "rollouts" in missing(TOOL, make_run(signals=run.signals.known))
    assert "fewer than 10" in missing(TOOL, simulate(1, steps=9))
    early = replace(run, rollouts=simulate(1, steps=20).rollouts)
    assert "both sides" in missing(TOOL, early)


def test_texts_that_a_writer_cut_tell_no_tokens(simulate: MakeRun, missing: Any) -> None:
    def cut(draft: SimpleNamespace) -> None:
        if draft.step >= ONSET:
            draft.completions = [f"{text} {'so then ' * 30}"[:60] for text in draft.completions]

    run = simulate(1, edit=cut, log=runs_on, config={"max_completion_length": CAP})
    assert "cut at one length" in missing(TOOL, run)
