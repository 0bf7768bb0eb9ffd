"""Rows of many steps side by side give what each step gives alone."""

from collections.abc import Callable

import numpy as np
import pytest

from firstbad.tools.rewards import group_stats
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import RolloutBatch, Run

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
REWARDS: dict[int, dict[str, list[float]]] = {
    3: {"correct": [1.0, np.nan, 0.0, 1.0], "form": [0.5, np.nan, 0.5, np.nan]},
    4: {"correct": [1.0, 1.0, 1.0, 1.0]},
    7: {"correct": [0.1] * 3 + [0.3] * 3, "form": [np.nan] * 6},
}


@pytest.fixture
def table(make_run: MakeRun, batch: MakeBatch) -> RowTable:
    batches = [batch(step, rewards=parts, size=2) for step, parts in REWARDS.items()]
    return RowTable(make_run(rollouts=batches), batches)


def test_rows_know_their_step(table: RowTable) -> None:
    assert table.steps.tolist() == [3, 4, 7]
    assert table.size.tolist() == [4, 4, 6]
    assert table.steps[table.step].tolist() == [3] * 4 + [4] * 4 + [7] * 6


@pytest.mark.parametrize("name", ["correct", "form"])
def test_mean_and_spread_are_those_of_each_step_alone(table: RowTable, name: str) -> None:
    values = table.part(name)
    found = list(zip(table.mean(values), table.spread(values), strict=True))
    for parts, pair in zip(REWARDS.values(), found, strict=True):
        own = np.array(parts.get(name, []))
        own = own[np.isfinite(own)]
        wanted = (own.mean(), own.std()) if len(own) else (np.nan, np.nan)
        assert pair == pytest.approx(wanted, nan_ok=True)


def test_groups_of_two_steps_are_never_one(table: RowTable) -> None:
    correct = group_stats(np.nan_to_num(table.part("correct")), table.group)
    assert correct.mean == pytest.approx([0.5, 0.5, 1.0, 1.0, 0.1, 0.2, 0.3])
    assert table.steps[table.group_step].tolist() == [3, 3, 4, 4, 7, 7, 7]


def test_an_unknown_total_is_no_number(table: RowTable) -> None:
    # No config gives the weights of two parts; a single part is its own total.
    assert np.isnan(table.total).tolist() == [True] * 4 + [False] * 4 + [True] * 6
