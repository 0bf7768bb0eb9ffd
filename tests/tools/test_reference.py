"""KL to the reference before any update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.run import Run

TOOL = "check_reference"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("kl", "first_bad"), [(0.0, None), (0.01, None), (0.2, 1)])
def test_another_reference_is_one_from_the_start(
    make_run: MakeRun, measure: Measure, kl: float, first_bad: int | None
) -> None:
    found = measure(TOOL, make_run(signals={"kl_ref": [kl, 0.3, 0.3]}))
    assert found["kl_first"] == kl
    assert (found["first_bad_step"], found["from_start"]) == (first_bad, first_bad == 1)


def test_without_the_first_step(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "KL" in missing(TOOL, make_run())
    assert "step 1" in missing(TOOL, make_run(signals={"kl_ref": [0.2] * 20}, first_step=100))
