"""Stop tokens against finish reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, RolloutBatch, Run, Vocabulary

TOOL = "check_stop_tokens"
PAD, STOP = 0, 1

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def run_of(
    make_run: MakeRun, batch: MakeBatch, capture: MakeCapture, words: Vocabulary
) -> Callable[..., Run]:
    def make(
        ids: Sequence[Sequence[int]], finish: Sequence[str], mask: Any = None, **fields: Any
    ) -> Run:
        advantage = np.linspace(-1, 1, len(ids))
        loss = np.asarray(ids) != PAD if mask is None else mask
        rows = batch(3, rewards={"correct": advantage}, advantage=advantage, finish=list(finish))
        dump = capture(3, token_id=ids, loss_mask=loss, advantage=advantage)
        return make_run(rollouts=[rows], captures=[dump], **{"vocabulary": words, **fields})

    return make


def test_rows_by_how_they_end(run_of: Callable[..., Run], measure: Measure) -> None:
    ids = [
        [5, 6, STOP, PAD],  # stopped
        [5, 6, 7, 8],  # cut
        [5, 6, 7, STOP],  # said to be cut, and a stop token stands there
        [5, 6, 9, PAD],  # said to have stopped, and no stop token stands there
        [5, STOP, 7, 8],  # cut far behind its stop: that one was sampled
    ]
    found = measure(TOOL, run_of(ids, ["stop", "length", "length", "stop", "length"]))
    assert (found["n_cut"], found["n_stopped"]) == (3, 2)
    assert found["share_cut_with_stop"] == pytest.approx(2 / 3, abs=1e-6)
    assert found["share_stopped_without"] == 0.5
    assert found["stops_named"]


def test_a_stop_token_outside_the_loss_is_not_trained(
    run_of: Callable[..., Run], measure: Measure
) -> None:
    run = run_of([[5, 6, 7, STOP]] * 4, ["length"] * 4, mask=[[1, 1, 1, 0]] * 4)
    assert measure(TOOL, run)["share_cut_with_stop"] == 0.0


def test_a_lost_stop_token_and_a_text_that_ends_answers(
    run_of: Callable[..., Run], measure: Measure
) -> None:
    lost = [[5, 6, k, PAD] for k in range(2, 10)]
    found = measure(TOOL, run_of(lost, ["stop"] * 8))
    assert (found["share_stopped_without"], found["commonest_last_share"]) == (1.0, 0.125)
    assert found["from_start"]
    by_text = [[5, k, 11, PAD] for k in range(2, 10)]
    assert measure(TOOL, run_of(by_text, ["stop"] * 8))["commonest_last_share"] == 1.0


def test_rows_of_another_order_are_not_compared(
    run_of: Callable[..., Run], missing: Callable[..., str], changed: Any
) -> None:
    run = run_of([[5, 6, STOP]] * 4, ["stop"] * 4)
    run = changed.recapture(
        run, lambda c: replace(c, arrays={**c.arrays, "advantage": c.arrays["advantage"][::-1]})
    )
    assert "no finish reasons" in missing(TOOL, run)
