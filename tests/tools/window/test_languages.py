"""Scripts of texts, and the one that comes up unasked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.run import RolloutBatch, Run
from firstbad.tools.window.languages import asked_by_name, written_in

TOOL = "read_rollouts"
MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]

ENGLISH = "so we add the tens first, which gives 42"
CHINESE = "所以我们先把十位相加, 得到 42"
RUSSIAN = "сначала сложим десятки, получим 42"
MIXED = "so we add the tens 先把十位相加 which gives 42"


@pytest.mark.parametrize(
    ("text", "scripts"),
    [
        (ENGLISH, {"Latin"}),
        (CHINESE, {"Chinese or Japanese"}),
        (RUSSIAN, {"Cyrillic"}),
        (MIXED, {"Latin", "Chinese or Japanese"}),
        ("これは漢字とカタカナの文です", {"Chinese or Japanese"}),
        ("因为 \\frac{a}{b} = x, 所以答案是 x 的平方根再加上一", {"Chinese or Japanese"}),
        ("the word 是 is Chinese", {"Latin"}),
        ("α + β = γ", set()),
        ("42", set()),
        ("x", set()),
        ("", set()),
    ],
)
def test_scripts_of_a_text(text: str, scripts: set[str]) -> None:
    assert written_in(text) == scripts


def test_a_prompt_asks_for_every_script_in_it() -> None:
    prompt = "Translate the following sentence into the language named at its end: 中文 " + ENGLISH
    assert written_in(prompt) == {"Latin"}
    assert written_in(prompt, least=0.0) == {"Latin", "Chinese or Japanese"}


@pytest.mark.parametrize(
    ("asked", "answered", "before", "after", "worse"),
    [
        # (prompts, answers) of both sides
        ((ENGLISH, ENGLISH), (ENGLISH, CHINESE), 0.0, 1.0, 1.0),
        ((ENGLISH, ENGLISH), (ENGLISH, MIXED), 0.0, 1.0, 1.0),
        ((CHINESE, CHINESE), (CHINESE, ENGLISH), 0.0, 1.0, 1.0),
        ((ENGLISH, ENGLISH), (CHINESE, RUSSIAN), 0.0, 1.0, 1.0),
        ((ENGLISH, ENGLISH), (CHINESE, CHINESE), 0.0, 0.0, 0.0),  # so from the start
        ((ENGLISH, RUSSIAN), (ENGLISH, RUSSIAN), 0.0, 0.0, 0.0),  # prompts of another language
        ((ENGLISH, RUSSIAN), (ENGLISH, ENGLISH), 0.0, 0.0, 0.0),
        (("", ""), (ENGLISH, CHINESE), 0.0, 1.0, 1.0),
    ],
)
def test_a_language_that_comes_up(
    asked: tuple[str, str], answered: tuple[str, str], before: float, after: float, worse: float,
    make_run: MakeRun, batch: MakeBatch, measure: Measure,
) -> None:  # fmt: skip
    sides = [
        batch(s, prompts=[prompt] * 4, completions=[f"{text} {i}" for i in range(4)])
        for s, prompt, text in zip((1, 2), asked, answered, strict=True)
    ]
    m = measure(TOOL, make_run(rollouts=sides), before=1, after=2)
    assert (m["language_before"], m["language_after"], m["worse_by"]) == (before, after, worse)
    assert m["garbage_after"] == 0


def test_a_bilingual_run_that_goes_on_so(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    sides = [batch(s, prompts=[ENGLISH] * 4, completions=[ENGLISH, CHINESE] * 2) for s in (1, 2)]
    m = measure(TOOL, make_run(rollouts=sides), before=1, after=2)
    assert m["worse_by"] == 0


def test_half_of_the_answers_turn(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    sides = [
        batch(1, prompts=[ENGLISH] * 4, completions=[ENGLISH] * 3 + [CHINESE]),
        batch(2, prompts=[ENGLISH] * 4, completions=[ENGLISH] + [CHINESE] * 3),
    ]
    m = measure(TOOL, make_run(rollouts=sides), before=1, after=2)
    assert (m["language_before"], m["language_after"], m["worse_by"]) == (0.25, 0.75, 0.5)


@pytest.mark.parametrize(
    ("prompt", "scripts"),
    [
        ("Answer in Russian: 2 + 2", {"Cyrillic"}),
        ("translate into simplified Chinese or to Korean", {"Chinese or Japanese", "Hangul"}),
        ("Who wrote this Russian novel?", set()),
        ("the chin in Russianist", set()),
    ],
)
def test_a_language_that_a_prompt_names_was_asked_for(prompt: str, scripts: set[str]) -> None:
    assert asked_by_name(prompt) == scripts
