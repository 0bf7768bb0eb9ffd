"""The likelihood of a few fixed answers must fall."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.run import Run
from synthetic.by_hand import flight, probe

TOOL = "read_fit_probe"
MakeRun = Callable[..., Run]


def test_the_probe_that_falls_least_counts(
    make_run: MakeRun, measure: Callable[..., dict[str, Any]]
) -> None:
    probes = [
        probe("fit", 1, nll_first=2.0, nll_last=0.5, n_updates=20),
        probe("fit", 9, nll_first=2.0, nll_last=1.99, n_updates=20),
    ]
    found = measure(TOOL, make_run(flight=flight(probes=probes)))
    assert (found["n_probes"], found["fell"]) == (2, pytest.approx(0.005))
    assert (found["last_good_step"], found["first_bad_step"]) == (1, 9)


@pytest.mark.parametrize(
    "figures",
    [
        {"nll_first": 2.0, "nll_last": 1.999, "n_updates": 1},
        {"nll_first": 0.01, "nll_last": 0.01, "n_updates": 20},
        {"nll_first": 2.0, "nll_last": None, "n_updates": 20},
    ],
)
def test_too_few_updates_or_nothing_left_to_fit(
    make_run: MakeRun, missing: Callable[..., str], figures: dict[str, Any]
) -> None:
    assert "fit" in missing(TOOL, make_run(flight=flight(probes=[probe("fit", **figures)])))
