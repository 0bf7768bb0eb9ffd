"""Captured completions against those of the rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, RolloutBatch, Run, Vocabulary

TOOL = "compare_completion_ids"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
WORDS = [
    " zero",
    " one",
    " two",
    " three",
    " four",
    " five",
    " six",
    " seven",
    "<eos>",
    " ?",
    "<pad>",
]
EOS, PAD = 8, 10
STEPS = (1, 10, 20, 30)
VOCABULARY = Vocabulary(dict(enumerate(WORDS)), frozenset({EOS}), PAD, ())


def rows(step: int) -> list[list[int]]:
    rng = np.random.default_rng(step)
    return [[*rng.integers(0, 8, 5).tolist(), EOS] for _ in range(16)]


def text(row: Sequence[int]) -> str:
    return "".join(WORDS[i] for i in row if i != EOS).strip()


@pytest.fixture(name="run_of")
def _run_of(make_run: MakeRun, batch: Any, capture: Any) -> Callable[..., Run]:
    """A run whose captures hold what `change` makes of the sampled rows of a step."""

    def build(change: Callable[[int, list[list[int]]], list[list[int]]], **fields: Any) -> Run:
        batches: list[RolloutBatch] = []
        dumps: list[Capture] = []
        for step in STEPS:
            sampled = rows(step)
            batches.append(
                batch(
                    step,
                    rewards={"r": [0.0] * 16},
                    size=4,
                    prompts=[f"ask {i // 4}" for i in range(16)],
                    completions=[text(row) for row in sampled],
                )
            )
            ids = [row + [PAD] * (12 - len(row)) for row in change(step, sampled)]
            dumps.append(
                capture(
                    step,
                    token_id=ids,
                    completion_mask=[[i != PAD for i in row] for row in ids],
                    logp_new=np.zeros((16, 12)),
                )
            )
        made = {"rollouts": batches, "captures": dumps, "vocabulary": VOCABULARY, **fields}
        return make_run(**made)

    return build


def glued(row: list[int]) -> list[int]:
    """The last word and the end as one unknown word."""
    return [*row[:-2], 9, EOS]


def test_tokenised_again_from_text(run_of: Callable[..., Run], measure: Measure) -> None:
    found = measure(TOOL, run_of(lambda s, r: [glued(x) for x in r] if s >= 20 else r))
    assert (found["n_captures"], found["n_rows"]) == (4, 64)
    assert (found["share_other"], found["share_other_before"]) == (1, 0)
    assert found["edit_share"] < 0.5
    assert (found["last_good_step"], found["first_bad_step"]) == (10, 20)


def test_other_rows_resemble_none(run_of: Callable[..., Run], measure: Measure) -> None:
    other = [[9] * 5 + [EOS] for _ in range(16)]
    found = measure(TOOL, run_of(lambda s, r: other if s >= 20 else r))
    assert found["share_other"] == 1
    assert found["edit_share"] > 0.5


@pytest.mark.parametrize(
    "change",
    [
        lambda s, r: r,
        lambda s, r: r[::-1],  # shuffled, as trainers do
        lambda s, r: [glued(x) if i == 3 else x for i, x in enumerate(r)],  # a row or two
        lambda s, r: [glued(x) for x in r],  # the log never had that part
        lambda s, r: [glued(x) for x in r] if s == 20 else r,  # and back
    ],
    ids=["sound", "shuffled", "one row", "all along", "one capture"],
)
def test_what_is_not_dated(
    run_of: Callable[..., Run],
    measure: Measure,
    change: Callable[[int, list[list[int]]], list[list[int]]],
) -> None:
    found = measure(TOOL, run_of(change))
    assert found["first_bad_step"] is None
    assert found["share_other_before"] is None


def test_without_data(
    run_of: Callable[..., Run], missing: Callable[..., str], make_run: MakeRun
) -> None:
    assert "tokenizer" in missing(TOOL, make_run())
    assert "rollouts" in missing(TOOL, make_run(vocabulary=VOCABULARY))
    assert "no captures" in missing(TOOL, run_of(lambda s, r: r, captures=()))
