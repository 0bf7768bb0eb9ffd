"""Gradients of the loss function on hand-made input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from firstbad.tools.run import Run
from synthetic.by_hand import flight, probe

TOOL = "check_objective_probe"
MakeRun = Callable[..., Run]
Case = tuple[str, float, float, float]
# The clip truth table at 0.2, as gradients of the loss: -A x ratio where the gradient flows.
TABLE: list[Case] = [
    ("up_inside", 1.0, 1.0, -1.0),
    ("up_cut", 1.0, 1.5, 0.0),
    ("up_flows", 1.0, 0.5, -0.5),
    ("down_inside", -1.0, 1.0, 1.0),
    ("down_cut", -1.0, 0.5, 0.0),
    ("down_flows", -1.0, 1.5, 1.5),
    ("kl", 0.0, 1.0, 0.02),
]


@pytest.fixture
def check(make_run: MakeRun, measure: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Metrics of a probe in which the cases named measure something else than expected."""

    def of(
        measured: Mapping[str, object] | None = None, *, spread: float = 1e-6, **config: object
    ) -> Any:
        cases = [
            {
                "name": n,
                "advantage": a,
                "ratio": r,
                "expected": e,
                "measured": (measured or {}).get(n, e),
            }
            for n, a, r, e in TABLE
        ]
        made = probe("objective", cases=cases, spread=spread)
        return measure(TOOL, make_run(flight=flight(probes=[made]), config=config))

    return of


def test_the_truth_table_holds(check: Any) -> None:
    found = check(epsilon=0.2)
    assert (found["n_cases"], found["n_wrong"], found["table_disagrees"]) == (7, 0, 0)
    assert found["first_bad_step"] is None


def test_a_range_that_is_not_the_configured_one(check: Any) -> None:
    """With 0.6 on the upper side a ratio of 1.5 is not cut."""
    assert check(epsilon=0.2, epsilon_high=0.6)["table_disagrees"] == 1


def test_cut_on_the_wrong_side(check: Any) -> None:
    found = check({"up_cut": -1.5, "up_flows": 0.0, "down_cut": 0.5, "down_flows": 0.0})
    assert (found["n_wrong"], found["n_not_cut"], found["n_cut"]) == (4, 2, 2)


def test_wrong_sign(check: Any) -> None:
    found = check({n: -e for n, a, _, e in TABLE if a})
    assert (found["n_sign"], found["n_not_cut"], found["n_cut"]) == (4, 0, 0)
    assert found["ratio_constant"] == -1


def test_a_weight_that_is_not_passed(check: Any) -> None:
    """Every expected value holds an importance weight of 0.5, every measured one none."""
    found = check({n: 2 * e for n, a, _, e in TABLE if a})
    assert (found["ratio_constant"], found["n_sign"], found["n_cut"]) == (2, 0, 0)


def test_detached(check: Any) -> None:
    found = check({n: 0.0 for n, a, _, _ in TABLE if a})
    assert (found["all_zero"], found["n_cut"], found["ratio_constant"]) == (True, 0, None)


def test_the_term_without_an_advantage(check: Any) -> None:
    assert check({"kl": -0.02})["n_term_sign"] == 1
    gone = check({"kl": 0.0})
    assert (gone["n_term_wrong"], gone["n_term_sign"], gone["n_sign"]) == (1, 0, 0)


def test_what_differs_by_rounding_is_right(check: Any) -> None:
    assert check({n: e * (1 + 4e-3) for n, _, _, e in TABLE})["n_wrong"] == 0
    assert check({"up_inside": -1.05}, spread=1e-2)["n_wrong"] == 0
    assert check({"up_inside": -1.05})["n_wrong"] == 1


def test_a_gradient_that_is_not_finite_is_wrong(check: Any) -> None:
    found = check({"down_flows": "NaN"})
    assert (found["n_wrong"], found["n_sign"]) == (1, 0)


def test_cases_without_numbers_do_not_count(make_run: MakeRun, missing: Callable[..., str]) -> None:
    made = probe("objective", cases=[{"name": "up", "advantage": 1.0, "ratio": "?"}, 3])
    assert "objective" in missing(TOOL, make_run(flight=flight(probes=[made])))
