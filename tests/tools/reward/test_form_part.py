"""A part that pays for tags, read against the tags themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "check_form_part"

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
ONE_LINE = "<think> so </think> <answer> 1 </answer>"
TWO_LINES = "<think>\nso\n</think>\n<answer>1</answer>"
BARE = "so it is 1"


def scored(
    batch: MakeBatch, texts: list[str], pattern: re.Pattern[str], steps: int = 40, **fields: Any
) -> list[RolloutBatch]:
    form = [float(pattern.match(text) is not None) for text in texts]
    return [
        batch(
            s,
            rewards={"correct": [1.0] * len(texts), "format_reward": form},
            completions=texts,
            **fields,
        )
        for s in range(1, steps + 1)
    ]


PATTERN = r"^\s*<think>.*?</think>\s*<answer>.*?</answer>\s*$"


def test_a_dot_that_stops_at_line_breaks(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = scored(batch, [ONE_LINE, TWO_LINES, BARE, TWO_LINES], re.compile(PATTERN))
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["n_well_formed"], found["n_refused"]) == (120, 80)
    assert found["refused_share"] == pytest.approx(2 / 3, abs=1e-6)
    assert (found["refused_broken_share"], found["accepted_broken_share"]) == (1, 0)
    assert (found["separated"], found["from_start"]) == (True, True)


def test_all_are_refused(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    rows = scored(batch, [TWO_LINES, BARE], re.compile(PATTERN))
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["refused_share"], found["separated"]) == (1, True)


def test_the_same_completions_with_a_dot_for_all(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = scored(batch, [ONE_LINE, TWO_LINES, BARE, TWO_LINES], re.compile(PATTERN, re.DOTALL))
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["n_refused"], found["separated"], found["first_bad_step"]) == (0, False, None)


def test_the_opening_tag_stands_in_the_prompt(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = scored(
        batch,
        ["so </think> <answer> 1 </answer>", BARE],
        re.compile(PATTERN, re.DOTALL),
        prompts=["add 1 and 0 <think>\n"] * 2,
    )
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["n_well_formed"], found["refused_opened_by_prompt"]) == (40, 1)
    assert found["separated"]


def test_another_form_is_asked_for(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    """Half of the rows are refused, and neither line breaks nor the prompt tell which."""
    rows = scored(
        batch,
        [ONE_LINE, TWO_LINES, ONE_LINE.replace("so", "then"), TWO_LINES.replace("so", "then")],
        re.compile(r"(?s)^\s*<think>\s*then"),
    )
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["refused_share"], found["separated"]) == (0.5, False)


def test_no_part_for_form(make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]) -> None:
    rows = [batch(s, rewards={"correct": [1.0], "brevity": [0.0]}) for s in range(1, 5)]
    assert "pays for form" in missing(TOOL, make_run(rollouts=rows))
