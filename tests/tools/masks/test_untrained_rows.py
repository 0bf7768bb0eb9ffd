"""Rows outside the loss, and the reasons on record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Capture, RolloutBatch, Run, Vocabulary

TOOL = "count_untrained_rows"
PAD, STOP = 0, 1

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]

IDS = [
    [5, 6, STOP, PAD],  # trained
    [5, 6, 7, 8],  # cut
    [5, 6, 7, STOP],  # no advantage
    [5, 6, STOP, PAD],  # lost
    [PAD, PAD, PAD, PAD],  # empty
    [5, 6, STOP, PAD],  # trained in part
]
LOSS = [[1, 1, 1, 0], [0] * 4, [0] * 4, [0] * 4, [0] * 4, [1, 0, 0, 0]]
ADVANTAGE = [1.0, -1.0, 0.0, 0.5, -0.25, -0.25]


def test_each_row_has_one_reason(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, evidence: Callable[..., Evidence]
) -> None:
    dump = capture(7, token_id=IDS, loss_mask=LOSS, advantage=ADVANTAGE)
    found = evidence(TOOL, make_run(captures=[dump], vocabulary=words))
    m = found.metrics
    assert m is not None
    assert (m["n_rows"], m["n_untrained"]) == (6, 4)
    assert [m[k] for k in ("n_cut", "n_failed", "n_no_advantage", "n_by_setting")] == [1, 1, 1, 0]
    assert (m["n_unexplained"], m["first_bad_step"], m["from_start"]) == (1, 7, True)
    assert found.tables[0].rows == ((7, 6, 1, 1, 1, 0, 1),)


def test_finish_reasons_come_before_tokens(
    make_run: MakeRun, batch: MakeBatch, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    """The row that looks lost was cut behind its stop token, and the third failed."""
    reasons = ["stop", "length", "error", "length", "stop", "stop"]
    rows = batch(7, rewards={"correct": ADVANTAGE}, advantage=ADVANTAGE, finish=reasons)
    dump = capture(7, token_id=IDS, loss_mask=LOSS, advantage=ADVANTAGE)
    found = measure(TOOL, make_run(rollouts=[rows], captures=[dump], vocabulary=words))
    assert (found["n_cut"], found["n_failed"], found["n_unexplained"]) == (2, 2, 0)


def test_a_setting_that_leaves_samples_out(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    dump = capture(7, token_id=IDS, loss_mask=LOSS, advantage=ADVANTAGE)
    for value, by_setting in ((0.5, 1), (None, 0), (False, 0)):
        settings = {"off_policy_mask_threshold": value}
        found = measure(TOOL, make_run(captures=[dump], vocabulary=words, config=settings))
        assert (found["n_by_setting"], found["n_unexplained"]) == (by_setting, 1 - by_setting)


def test_trained_prompt_tokens_count(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    dump = capture(7, token_id=IDS, loss_mask=LOSS, advantage=ADVANTAGE, prompt_loss_mask=[[1]] * 6)
    assert measure(TOOL, make_run(captures=[dump], vocabulary=words))["n_untrained"] == 0
