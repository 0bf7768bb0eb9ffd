"""Which micro-batches and ranks the whole gradient depends on, from hand-made gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.flight import FlightStep
from firstbad.tools.run import Run
from synthetic.by_hand import flight, ledger

REACH = "measure_microbatch_reach"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Reaches = Callable[[int, int, int], bool]


def steps_of(
    ranks: int,
    places: int,
    n: int = 60,
    *,
    reaches: Reaches = lambda step, rank, place: True,
    common: float = 0.3,
    vary: float = 0.5,
    seed: int = 0,
) -> list[FlightStep]:
    """Updates whose micro-batches have random gradients with a common part, of varying size."""
    rng = np.random.default_rng(seed)
    found = []
    for step in range(1, n + 1):
        shared, whole, parts = rng.normal(size=50), np.zeros(50), []
        for rank in range(ranks):
            for place in range(places):
                own = np.exp(vary * rng.normal()) * (common * shared + rng.normal(size=50))
                whole += own * reaches(step, rank, place)
                parts.append({"rank": rank, "grad_norm": float(np.linalg.norm(own))})
        found.append(ledger(step, *parts, norm=float(np.linalg.norm(whole))))
    return found


@pytest.mark.parametrize(("ranks", "places"), [(1, 4), (2, 2), (4, 1)])
def test_all_reach_the_sum(make_run: MakeRun, measure: Measure, ranks: int, places: int) -> None:
    found = measure(REACH, make_run(flight=flight(*steps_of(ranks, places))))
    assert (found["n_lost"], found["all_there"], found["first_bad_step"]) == (0, True, None)


@pytest.mark.parametrize(("ranks", "places"), [(2, 2), (4, 1), (3, 3)])
def test_a_rank_that_is_lost(make_run: MakeRun, measure: Measure, ranks: int, places: int) -> None:
    steps = steps_of(ranks, places, reaches=lambda step, rank, place: rank != 1 or step < 31)
    found = measure(REACH, make_run(flight=flight(*steps)))
    assert (found["by_rank"], found["n_lost"], found["n_places"]) == (True, 1, ranks)
    assert found["last_good_step"] < 31 <= found["first_bad_step"] < 40
    assert abs(found["share"]) < 0.15


def test_one_micro_batch_of_four(make_run: MakeRun, measure: Measure) -> None:
    steps = steps_of(1, 4, reaches=lambda step, rank, place: place != 2)
    found = measure(REACH, make_run(flight=flight(*steps)))
    assert (found["by_rank"], found["n_lost"], found["from_start"]) == (False, 1, True)


def test_a_part_whose_norm_does_not_vary_is_not_judged(
    make_run: MakeRun, measure: Measure, missing: Callable[..., str]
) -> None:
    lost = steps_of(1, 8, 40, reaches=lambda step, rank, place: place != 2, vary=0.0)
    found = measure(REACH, make_run(flight=flight(*lost)))
    assert (found["n_lost"], found["all_there"]) == (0, False)
    assert "too few" in missing(REACH, make_run(flight=flight(*steps_of(2, 1, 8))))
    still = [ledger(s, {"grad_norm": 1.0}, {"grad_norm": 1.0}, norm=1.4) for s in range(1, 40)]
    assert "too few" in missing(REACH, make_run(flight=flight(*still)))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([(1, 2), (1, 4), (2, 1), (2, 2), (4, 2)]),
    st.sampled_from([0.0, 0.3, 2.0]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.floats(0.01, 100),
)
def test_sound_sums_lose_nothing_whatever_joins_them(
    seed: int, shape: tuple[int, int], common: float, vary: float, factor: float
) -> None:
    from firstbad.tools.accumulation.ledger import updates_of
    from firstbad.tools.accumulation.ledger_reach import PLACES, _by_place

    steps = steps_of(*shape, 30, common=common, vary=vary, seed=seed)
    steps = [
        ledger(
            s.step,
            *({"rank": p.rank, "grad_norm": p.grad_norm} for p in s.microbatches),
            norm=factor * (s.norms[0].before_clip or 0.0),
        )
        for s in steps
    ]
    run = type("R", (), {"flight": flight(*steps), "signals": {}})()
    for name in PLACES:
        found = _by_place(updates_of(run), name)
        assert found is None or found.n_lost == 0
