"""Rows of many steps side by side give what each step gives alone."""

from collections.abc import Callable

import numpy as np
import pytest

from firstbad.tools.rewards import group_stats
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import RolloutBatch, Run, Signal

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


def test_the_longest_rows_of_each_step_are_as_many_as_asked_for(table: RowTable) -> None:
    values = np.array([3.0, 9, 1, 9, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5])
    found = table.longest(values, np.array([1.0, 0, 2]))
    assert np.flatnonzero(found).tolist() == [3, 12, 13], "of equal ones the last"
    assert not table.longest(values, np.zeros(3)).any()


def test_a_signal_is_read_at_the_steps_of_the_table(table: RowTable) -> None:
    logged = Signal("loss", np.array([1, 3, 7]), np.array([0.1, 0.3, 0.7]), "loss")
    wanted = [logged.at(step) for step in table.steps.tolist()]
    assert wanted == [0.3, None, 0.7]
    assert table.logged(logged).tolist() == pytest.approx([0.3, np.nan, 0.7], nan_ok=True)
    assert np.isnan(table.logged(None)).all()
    empty = Signal("loss", np.empty(0, np.int64), np.empty(0), "loss")
    assert np.isnan(empty.on(table.steps)).all()
