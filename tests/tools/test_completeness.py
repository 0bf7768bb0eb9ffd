"""Whether the rollouts hold every row that was trained on."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.completeness import rows_complete, whole_groups, whole_rows
from firstbad.tools.run import RolloutBatch, Run

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
Missing = Callable[..., str]

FULL = {"generation_batch_size": 32}


def sampled(run: Run, changed: SimpleNamespace, rows: list[int]) -> Run:
    """The run with only some rows of each step written."""
    found: Run = changed.rebatch(run, lambda b: changed.reorder(b, rows))
    return found


@pytest.mark.parametrize(
    "rows",
    [list(range(16)), [0, 8, 16, 24], [3, 7, 12, 30]],
    ids=["first rows", "one a prompt", "random rows"],
)
def test_a_sample_of_the_rows(simulate: MakeRun, changed: SimpleNamespace, rows: list[int]) -> None:
    run = simulate(1, config=FULL)
    assert rows_complete(run) is True
    assert rows_complete(sampled(run, changed, rows)) is False


def test_filtered_groups_are_all_rows_that_were_trained_on(
    simulate: MakeRun, changed: SimpleNamespace
) -> None:
    """Fewer rows than generated, and the log speaks of just these."""
    filtered = simulate(1, groups=2, config=FULL)
    untold = changed.relog(filtered, trained_tokens_mean=None)
    assert rows_complete(untold) is True, "the logged means are theirs"
    moved = np.linspace(0.1, 0.6, 60)
    other = changed.relog(untold, **{"reward_part/correct": moved, "reward_mean": moved})
    assert rows_complete(other) is False
    # The config's micro-batch holds half of the generated rows.
    counted = changed.relog(
        other,
        trained_tokens_mean=8 * filtered.signals.known["completion_length_mean"].values,
    )
    assert rows_complete(counted) is True


def test_without_a_stated_number_of_rows(simulate: MakeRun, changed: SimpleNamespace) -> None:
    run = simulate(1, steps=12)
    assert rows_complete(run) is None
    assert rows_complete(sampled(run, changed, [0, 8, 16, 24])) is False, "one of eight a prompt"


def test_whole_groups(make_run: MakeRun, batch: MakeBatch) -> None:
    rows = batch(rewards={"correct": [1, 0, 1, 0, 1]}, group=[0, 0, 0, 1, 1])
    run = make_run(config={"num_generations": 3}, rollouts=[rows])
    assert whole_groups(run, rows).tolist() == [True, True, True, False, False]
    left = whole_rows(run, rows)
    assert len(left) == len(left.prompts) == 3
    assert left.rewards["correct"].tolist() == [1, 0, 1]
    untold = make_run(rollouts=[rows])
    assert whole_rows(untold, rows) is rows


def test_what_takes_all_rows_is_not_read_off_a_sample(
    simulate: MakeRun, changed: SimpleNamespace, measure: Measure, missing: Missing
) -> None:
    run = simulate(1, config=FULL)
    some = sampled(run, changed, [3, 7, 12, 30])
    assert "part of the rows" in missing("check_loss_identity", some)
    assert "whole group" in missing("count_zero_variance", some)
    assert measure("recompute_means", some)["rows_complete"] is False
    counted = measure("count_trained_tokens", some)
    assert counted["off_steps_share"] == 0
    assert counted["excess_per_row"] == pytest.approx(0, abs=0.01)
    fewer = sampled(run, changed, list(range(20)))  # groups of 8, 8 and 4
    assert measure("count_zero_variance", fewer)["n_groups"] == 2 * 60
