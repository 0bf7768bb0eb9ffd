"""The stretch of samples whose mean is farthest from 0, and its chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from firstbad.tools.probability.odd_stretch import ALONE, TOGETHER, odd_stretch


def test_hand_computed_chance() -> None:
    # Four samples of 400 values +-1, the second and third raised by 0.2: inside the variance is 1,
    # over all 1.01, so z = 0.2 sqrt(800 / 1.01) = 5.63. Stretches of two samples or more: 6.
    half = np.repeat([1.0, -1.0], 200)
    found = odd_stretch([half, half + 0.2, half + 0.2, half])
    assert found is not None
    assert (found.first, found.stop, found.size) == (1, 3, 800)
    assert found.mean == pytest.approx(0.2)
    z = 0.2 * math.sqrt(800 / 1.01)
    assert found.p == pytest.approx(6 * math.erfc(z / math.sqrt(2)), rel=0.01)


def test_one_sample_counts_alone_only_where_it_is_large() -> None:
    half = np.repeat([1.0, -1.0], 200)
    found = odd_stretch([half, half + 0.5, half])
    assert found is not None
    assert found.stop - found.first >= 2
    large = np.repeat([1.0, -1.0], ALONE // 2)
    alone = odd_stretch([large, large + 0.5, large])
    assert alone is not None
    assert (alone.first, alone.stop) == (1, 2)


def test_values_that_are_missing_inside_do_not_narrow_the_error() -> None:
    """One value in 400 is large: 800 without any have a low mean, and next to no spread."""
    usual = np.full(400, -0.025)
    usual[0] += 10.0
    quiet = np.full(400, -0.025) + np.resize([1e-3, -1e-3], 400)
    found = odd_stretch([usual, usual, quiet, quiet, usual, usual])
    assert found is not None
    assert found.p > 0.01


def test_chance_alone_seldom_makes_a_stretch() -> None:
    rng = np.random.default_rng(0)
    chances = [odd_stretch([rng.normal(0, 1, 400) for _ in range(40)]) for _ in range(60)]
    assert sum(c is not None and c.p < 0.05 for c in chances) <= 6


def test_too_few_values_hold_no_stretch() -> None:
    assert odd_stretch([]) is None
    assert odd_stretch([np.ones(5000)]) is None
    assert odd_stretch([np.ones(TOGETHER // 4)] * 2) is None
    assert odd_stretch([np.zeros(5000)] * 2) is None
