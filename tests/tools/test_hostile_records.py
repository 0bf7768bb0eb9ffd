"""Ledgers and probes with numbers that no training writes: measured or refused, never a break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.flight import FlightStep, ParameterGroup, Stages
from firstbad.tools.registry import run_tool
from firstbad.tools.run import Run
from synthetic.by_hand import flight, ledger, probe

TOOLS = (
    "check_microbatch_norms",
    "check_microbatch_rows",
    "check_microbatch_weights",
    "check_objective_probe",
    "check_parameter_groups",
    "measure_microbatch_reach",
    "read_accumulation_probe",
    "read_fit_probe",
)
number = st.one_of(
    st.none(),
    st.sampled_from([0.0, -1.0, 1.0, 1e-320, 1e308, -1e308, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False),
)
anything: st.SearchStrategy[object] = st.one_of(
    number, st.just("NaN"), st.booleans(), st.just([]), st.text(max_size=3)
)
count = st.one_of(st.none(), st.integers(-3, 2**62))
part = st.fixed_dictionaries(
    {
        "rank": st.one_of(st.none(), st.integers(-1, 3)),
        "n_samples": count,
        "n_tokens": count,
        "denominator": number,
        "scale": number,
        "loss": number,
        "grad_norm": number,
        "samples": st.lists(st.sampled_from("ab"), max_size=3).map(tuple),
    }
)
FIGURES = (
    *("cosine", "norm_ratio", "spread", "n_microbatches", "world_size", "cosine_subset"),
    *("norm_ratio_one_rank", "parameter_delta", "nll_first", "nll_last", "n_updates"),
)
CASE = ("advantage", "ratio", "expected", "measured")


def step_of(
    step: int, parts: list[dict[str, Any]], figures: tuple[float | None, ...]
) -> FlightStep:
    norm, grad, update, weight = figures
    groups = tuple(ParameterGroup(n, grad, u, weight) for n, u in (("a", update), ("b", 1.0)))
    stages = Stages(trained=("a", "b"))
    return ledger(step, *parts, norm=norm, stages=stages, parameters=groups)


@given(
    steps=st.lists(
        st.tuples(st.lists(part, max_size=3), st.tuples(number, number, number, number)),
        min_size=1,
        max_size=16,
    ),
    loss=st.lists(st.floats(-1e300, 1e300), min_size=16, max_size=16),
    figures=st.fixed_dictionaries({name: anything for name in FIGURES}),
    cases=st.lists(st.fixed_dictionaries({name: anything for name in CASE}), max_size=3),
)
@settings(max_examples=40, deadline=None)
@pytest.mark.filterwarnings("ignore")
def test_no_tool_breaks(
    make_run: Callable[..., Run], steps: Any, loss: list[float], figures: Any, cases: Any
) -> None:
    probes = [
        probe("accumulation", **figures),
        probe("fit", **figures),
        probe("objective", cases=cases, spread=figures["spread"]),
        probe("gradients", parameters=[{"name": "a", "grad_norm": figures["spread"]}]),
    ]
    made = [step_of(i, *rest) for i, rest in enumerate(steps, 1)]
    run = make_run(
        signals={"loss": loss}, flight=flight(*made, probes=probes), config={"epsilon": 0.2}
    )
    for name in TOOLS:
        assert run_tool(name, run, {}, evidence_id="E1").error is None, name
