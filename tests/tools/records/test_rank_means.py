"""Means taken on each rank before they are gathered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.tools.records.rank_means import local_first


def test_nine_values_on_two_ranks_of_five() -> None:
    # Ranks hold 0..4 and 5..8; the second is filled up with the first value, or with the last.
    values, rank = np.arange(9.0), np.array([0] * 5 + [1] * 4)
    plain, with_first, with_last = local_first(values, rank)
    assert plain == pytest.approx((2.0 + 6.5) / 2)
    assert with_first == pytest.approx(3.6)
    assert with_last == pytest.approx(4.4)
    assert values.mean() == 4.0


@given(st.lists(st.floats(-10, 10), min_size=4, max_size=4))
def test_equal_ranks_give_the_mean_of_the_batch(values: list[float]) -> None:
    found = local_first(np.array(values), np.array([0, 1, 0, 1]))
    assert found == pytest.approx([float(np.mean(values))] * 3)
