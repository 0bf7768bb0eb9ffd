"""Captured prompts that were cut, and those that only a template or padding makes look so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.registry import run_tool
from firstbad.tools.run import Capture, RolloutBatch, Run, Vocabulary

TOOL = "compare_prompt_ids"
PAD, HEAD, ROLE, END, TAIL, WORD = 0, 2, 3, 4, 5, 10
TEXTS = {PAD: "<pad>", 1: "</s>", HEAD: "<|start|>", ROLE: "user", END: "<|end|>", TAIL: "bot"} | {
    WORD + i: f"{word} "
    for i, word in enumerate(("sum", "of", "the", "alpha", "bravo", "cider", "delta"))
}
VOCABULARY = Vocabulary(TEXTS, frozenset({1}), PAD)
ONSET, STEPS, ROWS = 31, range(1, 61, 10), 8

MakeRun = Callable[..., Run]
Make = Callable[..., Any]
Measure = Callable[..., dict[str, Any]]
Ids = list[int]


def words(step: int, row: int) -> Ids:
    """A prompt of 4 to 6 words, the first three of them the same in all."""
    rng = np.random.default_rng(100 * step + row)
    return [WORD, WORD + 1, WORD + 2, *(WORD + 3 + rng.integers(0, 4, 1 + row % 3)).tolist()]


def template(ids: Ids) -> Ids:
    return [HEAD, ROLE, *ids, END, HEAD, TAIL]


def bare(ids: Ids) -> Ids:
    return ids


@pytest.fixture
def prompts_of(make_run: MakeRun, batch: Make, capture: Make) -> Callable[..., Run]:
    """A run whose captures hold the rollouts' prompts in a `form`, changed from ONSET on."""

    def make(
        change: Callable[[Ids], Ids] = bare,
        *,
        form: Callable[[Ids], Ids] = template,
        onset: int = ONSET,
        surprise: float | None = 0.0,
        **fields: Any,
    ) -> Run:
        batches: list[RolloutBatch] = []
        captures: list[Capture] = []
        for step in STEPS:
            rows = [words(step, row) for row in range(ROWS)]
            texts = ["".join(TEXTS[i] for i in row).strip() for row in rows]
            batches.append(batch(step, rewards={"correct": [0] * ROWS}, prompts=texts))
            held = [change(form(row)) if step >= onset else form(row) for row in rows]
            width = max(map(len, held))
            ids = [[PAD] * (width - len(row)) + row for row in held]
            made: dict[str, Any] = {"token_id": np.full((ROWS, 40), 7)}
            if surprise is not None:
                rng = np.random.default_rng(step)
                off = surprise if step >= onset else 0.0
                made["entropy"] = np.ones((ROWS, 40))
                made["logp_new"] = -1.0 - off - 0.5 * rng.standard_normal((ROWS, 40))
            mask = np.array(ids) != PAD
            captures.append(capture(step, prompt_token_id=ids, prompt_mask=mask, **made))
        return make_run(rollouts=batches, captures=captures, **{"vocabulary": VOCABULARY, **fields})

    return make


def last(n: int) -> Callable[[Ids], Ids]:
    return lambda ids: ids[-n:]


def first(n: int) -> Callable[[Ids], Ids]:
    return lambda ids: ids[:n]


@pytest.mark.parametrize(
    ("change", "form", "kept", "lost"),
    [
        (last(5), template, 5, "beginning"),
        (last(2), bare, 2, "beginning"),
        (first(4), template, 4, "end"),
        (first(3), bare, 3, "end"),
    ],
)
def test_a_part_of_the_prompt(
    prompts_of: Callable[..., Run],
    measure: Measure,
    change: Callable[[Ids], Ids],
    form: Callable[[Ids], Ids],
    kept: int,
    lost: str,
) -> None:
    run = prompts_of(change, form=form, surprise=0.3)
    found = measure(TOOL, run)
    assert found["share_rows_cut"] == 1
    assert found["begin_lost_share"] == (lost == "beginning")
    assert found["tokens_whole_fewest"] > kept
    said = run_tool(TOOL, run, {}, evidence_id="E1").quote
    assert said == f"The {lost} of the prompt was lost."
    assert found["tokens_kept"] == kept
    assert not found["cut_by_setting"]
    assert (found["last_good_step"], found["first_bad_step"]) == (21, 31)
    assert found["sampled"]
    assert found["surprise_cut"] == pytest.approx(0.3, abs=0.05)
    assert found["surprise_whole"] == pytest.approx(0, abs=0.05)
    assert found["surprise_gap_z"] > 4


def test_only_long_prompts_are_cut(prompts_of: Callable[..., Run], measure: Measure) -> None:
    """Eight tokens hold five words and what the template puts behind them; two rows have six."""
    found = measure(TOOL, prompts_of(last(8), surprise=0.3))
    assert found["share_rows_cut"] == 0.25
    assert found["share_rows_whole"] > 0.8
    assert found["first_bad_step"] == ONSET


@pytest.mark.parametrize("form", [template, bare])
def test_templates_padding_and_prompts_of_all_lengths_are_whole(
    prompts_of: Callable[..., Run], measure: Measure, form: Callable[[Ids], Ids]
) -> None:
    found = measure(TOOL, prompts_of(form=form))
    assert found["share_rows_whole"] == 1
    assert found["share_rows_cut"] == 0
    assert found["surprise_gap"] is found["first_bad_step"] is None


def test_another_template_is_not_a_shorter_prompt(
    prompts_of: Callable[..., Run], measure: Measure
) -> None:
    found = measure(TOOL, prompts_of(lambda ids: [ROLE, TAIL, *ids[2:]]))
    assert found["share_rows_whole"] == 1


def test_a_text_that_differs_in_its_middle_is_neither(
    prompts_of: Callable[..., Run], measure: Measure
) -> None:
    """Such as one with characters that tokens hold in part."""
    found = measure(TOOL, prompts_of(lambda ids: [*ids[:4], 99, *ids[5:]], onset=1))
    assert found["share_rows_whole"] == found["share_rows_cut"] == 0
    assert found["first_bad_step"] is None


def test_the_setting_that_cuts_is_named(prompts_of: Callable[..., Run], measure: Measure) -> None:
    found = measure(TOOL, prompts_of(last(5), config={"max_prompt_length": 5}))
    assert found["share_rows_cut"] == 1
    assert found["cut_by_setting"]
    assert found["surprise_gap"] < 0.05


def test_cut_from_the_first_capture_on(prompts_of: Callable[..., Run], measure: Measure) -> None:
    found = measure(TOOL, prompts_of(last(5), onset=1, surprise=0.3))
    assert found["from_start"]
    assert found["surprise_whole"] is None
    assert found["surprise_gap"] == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("cut", [True, False])
def test_where_rollouts_of_the_step_are_missing_the_template_tells(
    prompts_of: Callable[..., Run], measure: Measure, changed: SimpleNamespace, cut: bool
) -> None:
    run = prompts_of(last(5) if cut else bare)
    few = replace(run, rollouts=prompts_of().rollouts)
    few.rollouts.steps = few.rollouts.steps[:3]
    found = measure(TOOL, few)
    assert found["first_bad_step"] == (ONSET if cut else None)
    assert found["share_rows_cut"] == cut


def test_without_entropies_no_surprise_is_read(
    prompts_of: Callable[..., Run], measure: Measure
) -> None:
    found = measure(TOOL, prompts_of(last(5), surprise=None))
    assert found["share_rows_cut"] == 1
    assert found["n_tokens_scored"] == 0
    assert found["surprise_cut"] is found["surprise_gap_z"] is None


def test_what_is_missing_is_said(
    prompts_of: Callable[..., Run], make_run: MakeRun, missing: Callable[..., str]
) -> None:
    run = prompts_of()
    assert "tokenizer" in missing(TOOL, replace(run, vocabulary=None))
    assert "rollouts" in missing(TOOL, replace(run, rollouts=make_run().rollouts))
    assert "captures" in missing(TOOL, replace(run, captures=make_run().captures))
