from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from firstbad.tools.errors import NoData
from firstbad.tools.flight import Flight, FlightStep, Norms
from firstbad.tools.run import Capture, Run
from firstbad.tools.window.states import compare_states  # "compare_states"

Make = Callable[..., Run]


def flight(*steps: FlightStep) -> Flight:
    found = {s.step: s for s in steps}
    return Flight(list(found), found.__getitem__)


@pytest.fixture
def run(make_run: Make, capture: Callable[..., Capture]) -> Run:
    one = capture(
        40,
        token_id=[[5, 6, 1, 0]],
        source=[[3, 3, 3, 0]],
        loss_mask=[[1, 1, 0, 0]],
        logp_old=[[-1.0, -1.0, -1.0, 0.0]],
        logp_new=[[-1.0, -1.5, -1.0, 0.0]],
    )
    found = make_run(signals={"reward_mean": [0.5] * 60}, captures=[one])
    return replace(
        found,
        flight=flight(
            FlightStep(30, kept="last_good", batch="b1", policy_version=29),
            FlightStep(
                40,
                kept="first_bad",
                why="reward fell",
                batch="b2",
                norms=(Norms(3.0, 1.0), Norms(9.0, 1.0)),
                seeds={"s": 4},
            ),
            FlightStep(41, kept="after"),
        ),
    )


def test_three_states_lie_side_by_side(run: Run) -> None:
    found = compare_states(run, before=32, after=33)
    m = found.metrics
    assert (m.n_states, m.last_good_kept, m.first_bad_kept, m.after_kept) == (3, 30, 40, 41)
    assert (m.steps_unseen, m.alarm_step, m.alarm_late_by, m.same_batch) == (9, 40, 7, False)
    (table,) = found.tables
    sides = ("before the change (30)", "at the change (40)", "one after (41)")
    assert table.columns == ("of the step", *sides)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["kept as"] == ("last good", "first bad", "after")
    assert rows["kept because of"] == (None, "reward fell", None)
    assert rows["batch"] == ("b1", "b2", None)
    assert rows["gradient norm before clipping"] == (None, 9.0, None)
    assert rows["seeds"] == (None, "s 4", None)
    assert rows["trained tokens"] == (None, 2, None)
    assert rows["completion tokens"] == (None, 3, None)
    assert rows["abs(log-ratio) P50 (nats)"] == (None, 0.25, None)
    assert rows["abs(log-ratio) max (nats)"] == (None, 0.5, None)
    assert rows["reward"] == (0.5, 0.5, 0.5)


def test_without_a_change_the_alarm_of_the_recorder_counts(run: Run) -> None:
    m = compare_states(run).metrics
    assert (m.last_good_kept, m.first_bad_kept, m.alarm_late_by) == (30, 40, 0)


def test_one_side_alone_is_said(run: Run) -> None:
    m = compare_states(run, before=10, after=11).metrics
    assert (m.n_states, m.last_good_kept, m.first_bad_kept, m.steps_unseen) == (2, None, 30, None)


def test_without_captures_or_change_there_is_no_data(run: Run, make_run: Make) -> None:
    with pytest.raises(NoData, match="no captured steps"):
        compare_states(make_run(signals={"reward_mean": [0.5] * 20}), before=3, after=4)
    with pytest.raises(NoData, match="neither a change to look at"):
        compare_states(replace(run, flight=Flight()))
