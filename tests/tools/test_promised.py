"""What a recorder says of its rows decides whether broken groups are a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.flight import Flight, FlightStep
from firstbad.tools.run import RolloutBatch, Run

TOOL = "check_rows"
WHOLE: dict[str, Any] = {"whole_groups": True, "in_order": True, "filters": "none"}


@pytest.mark.parametrize(
    ("said", "promised"),
    [
        (WHOLE, True),
        ({**WHOLE, "filters": "before"}, True),
        ({**WHOLE, "filters": "after"}, False),
        ({**WHOLE, "whole_groups": False}, False),
        ({**WHOLE, "in_order": False}, False),
        ({**WHOLE, "filters": None}, None),
        ({}, None),
        (None, None),
    ],
)
def test_all_steps_must_promise_and_one_may_deny(
    make_run: Callable[..., Run],
    batch: Callable[..., RolloutBatch],
    measure: Callable[..., dict[str, Any]],
    said: dict[str, Any] | None,
    promised: bool | None,
) -> None:
    rows = [batch(step, rewards={"correct": [1, 0, 0, 1]}, size=2) for step in (1, 2, 3)]
    told = {step: FlightStep(step, **WHOLE) for step in (1, 2)}
    if said is None:
        told = {}
    else:
        told[3] = FlightStep(3, **said)
    flight = Flight(tuple(told), told.__getitem__)
    found = measure(TOOL, make_run(rollouts=rows, flight=flight))
    assert found["promised"] is promised
