"""Rows of many steps side by side give what each step gives alone."""

import numpy as np
import pytest

from firstbad.tools.rewards import group_stats, total_reward
from firstbad.tools.row_table import RowTable
from tests.tools.conftest import make_batch, make_run

UNSCORED = {"correct": [1.0, np.nan, 0.0, 1.0], "form": [0.5, np.nan, 0.5, np.nan]}
BATCHES = [
    make_batch(3, rewards=UNSCORED),
    make_batch(4, rewards={"correct": [1.0, 1.0, 1.0, 1.0]}),
    make_batch(7, rewards={"correct": [0.1] * 3 + [0.3] * 3, "form": [np.nan] * 6}),
]
RUN = make_run(config={"num_generations": 2}, rollouts=BATCHES)
TABLE = RowTable(RUN, BATCHES)


def test_rows_know_their_step() -> None:
    assert TABLE.steps.tolist() == [3, 4, 7]
    assert TABLE.size.tolist() == [4, 4, 6]
    assert TABLE.steps[TABLE.step].tolist() == [3] * 4 + [4] * 4 + [7] * 6


@pytest.mark.parametrize("name", ["correct", "form"])
def test_mean_and_spread_are_those_of_each_step_alone(name: str) -> None:
    values = TABLE.part(name)
    for i, batch in enumerate(BATCHES):
        own = batch.rewards.get(name, np.full(len(batch), np.nan))
        own = own[np.isfinite(own)]
        wanted = (own.mean(), own.std()) if len(own) else (np.nan, np.nan)
        assert (TABLE.mean(values)[i], TABLE.spread(values)[i]) == pytest.approx(
            wanted, nan_ok=True
        )


def test_groups_of_two_steps_are_never_one() -> None:
    total = np.nan_to_num(TABLE.total)
    own = [group_stats(np.nan_to_num(total_reward(RUN, b)), b.group).mean for b in BATCHES]
    assert group_stats(total, TABLE.group).mean == pytest.approx(np.concatenate(own))


def test_an_unknown_total_is_no_number() -> None:
    table = RowTable(make_run(rollouts=BATCHES), BATCHES)  # no config: weights are not known
    assert np.isnan(table.total[:4]).all()
    assert table.total[4:8].tolist() == [1.0] * 4
