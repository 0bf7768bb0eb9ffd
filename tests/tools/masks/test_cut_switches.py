"""The three switches of cut answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firstbad.tools.run import Capture, RolloutBatch, Run, Vocabulary

TOOL = "check_cut_switches"
PAD, STOP = 0, 1
group_of = np.repeat(np.arange(4), 4)
cut_rows = np.array([0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0], bool)
reward_of = np.array([1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 1, 0.5])

Array = npt.NDArray[np.float64]
MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]


def advantage_of(rows: npt.NDArray[np.bool_]) -> Array:
    """Group mean and spread over these rows; 0 for the others."""
    out = np.zeros(16)
    for g in range(4):
        own = rows & (group_of == g)
        out[own] = (reward_of[own] - reward_of[own].mean()) / (reward_of[own].std(ddof=1) + 1e-4)
    return out


@pytest.fixture
def run_of(
    make_run: MakeRun, batch: MakeBatch, capture: MakeCapture, words: Vocabulary
) -> Callable[..., Run]:
    def make(
        advantage: Array,
        *,
        masked: bool,
        captured: bool = True,
        reward: Any = reward_of,
        **config: Any,
    ) -> Run:
        ids = np.where(cut_rows[:, None], [[5, 6, 7, 8]], [[5, 6, STOP, PAD]])
        loss = (ids != PAD) & ~(cut_rows & masked)[:, None]
        rows = batch(
            2, rewards={"correct": reward}, size=4, advantage=advantage,
            finish=["length" if c else "stop" for c in cut_rows],
        )  # fmt: skip
        dump = capture(2, token_id=ids, loss_mask=loss, advantage=advantage)
        return make_run(
            rollouts=[rows], captures=[dump] if captured else [], vocabulary=words, config=config
        )

    return make


def test_masked_and_counted(run_of: Callable[..., Run], measure: Measure) -> None:
    used = advantage_of(np.ones(16, bool))
    found = measure(TOOL, run_of(used, masked=True))
    assert (found["n_rows"], found["n_cut"], found["n_captured"]) == (16, 4, 4)
    assert (found["share_scored"], found["share_counted"]) == (1.0, 1.0)
    assert (found["share_trained"], found["trained_by_setting"]) == (0.0, False)
    assert (found["first_bad_step"], found["from_start"]) == (2, True)
    kept = [used[(group_of == g) & ~cut_rows].mean() for g in (0, 1, 3)]
    assert found["n_groups"] == 3, "the third group has no cut row"
    assert found["shift"] == pytest.approx(np.abs(kept).mean(), abs=1e-6)
    assert found["size_cut"] == pytest.approx(np.abs(used[cut_rows]).mean(), abs=1e-6)


@pytest.mark.parametrize(("masked", "trained"), [(False, 1.0), (True, 0.0)])
def test_left_out_of_the_statistics(
    run_of: Callable[..., Run], measure: Measure, masked: bool, trained: float
) -> None:
    found = measure(TOOL, run_of(advantage_of(~cut_rows), masked=masked))
    assert (found["share_counted"], found["share_trained"]) == (0.0, trained)
    assert found["n_groups"] == 3, "an advantage of 0 that the reward would not give"
    assert (found["shift"], found["size_cut"]) == (0.0, 0.0)


def test_all_three_on(run_of: Callable[..., Run], measure: Measure) -> None:
    found = measure(TOOL, run_of(advantage_of(np.ones(16, bool)), masked=False))
    assert (found["share_scored"], found["share_counted"], found["share_trained"]) == (1, 1, 1)
    assert found["first_bad_step"] is None


def test_counted_without_a_score(run_of: Callable[..., Run], measure: Measure) -> None:
    used = advantage_of(np.ones(16, bool))
    found = measure(TOOL, run_of(used, masked=False, reward=np.where(cut_rows, np.nan, reward_of)))
    assert (found["share_scored"], found["share_counted"], found["share_trained"]) == (0, 1, 1)


@pytest.mark.parametrize(("setting", "trained"), [(True, 0.0), (False, 1.0), (None, None)])
def test_without_captures_the_settings_tell(
    run_of: Callable[..., Run], measure: Measure, setting: bool | None, trained: float | None
) -> None:
    config = {} if setting is None else {"mask_truncated_completions": setting}
    used = advantage_of(np.ones(16, bool))
    found = measure(TOOL, run_of(used, masked=True, captured=False, **config))
    assert found["share_trained"] == trained
    assert found["trained_by_setting"] == (trained is not None)
    assert found["n_captured"] == 0


def test_scaled_again_over_the_batch_nothing_can_be_told(
    run_of: Callable[..., Run], measure: Measure
) -> None:
    found = measure(TOOL, run_of(advantage_of(np.ones(16, bool)) + 0.4, masked=True))
    assert (found["n_groups"], found["share_counted"]) == (0, 0.0)
