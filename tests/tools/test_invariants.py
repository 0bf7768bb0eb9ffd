"""What may not matter does not: for every tool that there is, on a sound run and on broken ones.

The same run is measured twice, the second time with its samples in another order inside their
groups, its rewards in another unit, more padding, or other prompts that mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.registry import tools
from firstbad.tools.run import Capture, RolloutBatch, Run

QUIET = settings(max_examples=2, deadline=None, derandomize=True)
Metrics = Mapping[str, bool | int | float | None] | None


def outage(draft: SimpleNamespace) -> None:
    """From step 20 on nothing is judged right."""
    if draft.step >= 20:
        draft.rewards["correct"][:] = 0.0


def other_group(draft: SimpleNamespace) -> None:
    """From step 20 on rows train with the advantages of their neighbours."""
    if draft.step >= 20:
        draft.advantage = np.roll(draft.advantage, 4)


RUNS: dict[str, dict[str, Any]] = {
    "sound": {},
    "an outage": {"edit": outage},
    "wrong advantages": {"train": other_group},
    "one group": {"groups": 1},
}


@pytest.fixture(scope="module")
def run_of(simulate: Callable[..., Run]) -> Callable[[str], Run]:
    return cache(lambda name: simulate(2, steps=36, dumps=5, **RUNS[name]))


@pytest.fixture(scope="module")
def all_of(evidence: Callable[..., Evidence]) -> Callable[[Run], dict[str, Metrics]]:
    """Metrics of every tool; None where it has no data."""
    return lambda run: {name: evidence(name, run).metrics for name in tools()}


@pytest.fixture(scope="module")
def before(
    run_of: Callable[[str], Run], all_of: Callable[[Run], dict[str, Metrics]]
) -> Callable[[str], dict[str, Metrics]]:
    return cache(lambda name: all_of(run_of(name)))


OF_ORDER = {
    "compare_completion_ids.edit_share",
    "rejudge.shift_agreement",
    "recompute_advantages.best_fit",
    "recompute_advantages.shifted_fits",
}
"""What asks whether rows would fit better a place further on, or lie beside rows of a capture."""
OF_UNIT = {"recompute_advantages.unscaled_fits"}
"""Advantages that are not divided by a spread are in the unit of the rewards."""
OF_PADDING = "test_surprise.*padd"
"""What compares rows with padding and without; where all have some there is nothing to compare."""


def close(a: object, b: object, tolerance: float = 1e-9) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))
    return a == b


def differences(
    old: Mapping[str, Metrics], new: Mapping[str, Metrics], tolerance: float = 1e-9
) -> dict[str, tuple[object, object]]:
    """`tool.metric`: both values, where they differ."""
    assert old.keys() == new.keys()
    found: dict[str, tuple[object, object]] = {}
    for tool in old:
        a, b = old[tool] or {}, new[tool] or {}
        for name in sorted(a.keys() | b.keys()):
            if not close(a.get(name), b.get(name), tolerance):
                found[f"{tool}.{name}"] = a.get(name), b.get(name)
    return found


@pytest.mark.parametrize("name", RUNS)
@QUIET
@given(order=st.permutations(range(8)))
def test_the_order_of_samples_inside_their_group(
    run_of: Any, all_of: Any, before: Any, changed: Any, name: str, order: list[int]
) -> None:
    def mixed(batch: RolloutBatch) -> RolloutBatch:
        rows = [i - i % 8 + order[i % 8] for i in range(len(batch))]
        moved: RolloutBatch = changed.reorder(batch, rows)
        return moved

    found = differences(before(name), all_of(changed.rebatch(run_of(name), mixed)))
    assert found.keys() <= OF_ORDER


@pytest.mark.parametrize("name", RUNS)
@QUIET
@given(more=st.integers(1, 9))
def test_more_padding(
    run_of: Any, all_of: Any, before: Any, changed: Any, name: str, more: int
) -> None:
    def padded(capture: Capture) -> Capture:
        wide = {
            n: np.pad(a, [(0, 0), (more, 0) if n.startswith("prompt") else (0, more)])
            if a.ndim == 2
            else a
            for n, a in capture.arrays.items()
        }
        return replace(capture, arrays=wide)

    found = differences(before(name), all_of(changed.recapture(run_of(name), padded)))
    assert not [metric for metric, (_, new) in found.items() if new is not None]
    assert all(re.match(OF_PADDING, metric) for metric in found)


@pytest.mark.parametrize("name", RUNS)
@QUIET
@given(letter=st.sampled_from("bcd"))
def test_other_names_of_the_prompts(
    run_of: Any, all_of: Any, before: Any, changed: Any, name: str, letter: str
) -> None:
    def renamed(batch: RolloutBatch) -> RolloutBatch:
        return replace(batch, prompts=[letter + p[1:] for p in batch.prompts])

    assert not differences(before(name), all_of(changed.rebatch(run_of(name), renamed)))


@pytest.mark.parametrize("name", RUNS)
@QUIET
@given(unit=st.sampled_from([0.25, 4.0]))
def test_another_unit_of_the_rewards(
    run_of: Any, all_of: Any, before: Any, changed: Any, name: str, unit: float
) -> None:
    def scaled(batch: RolloutBatch) -> RolloutBatch:
        return replace(batch, rewards={n: unit * v for n, v in batch.rewards.items()})

    run = changed.rebatch(run_of(name), scaled)
    values = {
        n: replace(s, values=unit * s.values)
        for n, s in run.signals.known.items()
        if n.startswith("reward")
    }
    found = differences(before(name), all_of(changed.relog(run, **values)), 2e-3)
    strange = {
        metric: (old, new)
        for metric, (old, new) in found.items()
        if not (isinstance(old, float) and close(unit * old, new, 2e-3)) and metric not in OF_UNIT
    }
    assert not strange
