"""Experts of both sides, and how log-probs differ where they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, Run

TOOL = "compare_routing"


def dump(make: Callable[..., Capture], step: int, apart: Any, gap: Any) -> Capture:
    other = np.asarray(apart)
    logp = np.full(other.shape, -1.0)
    return make(
        step,
        token_id=np.full(other.shape, 5),
        source=np.full(other.shape, 3),
        logp_old=logp,
        logp_engine=logp + np.asarray(gap, float),
        expert_trainer=np.full(other.shape, 70),
        expert_engine=np.where(other, 71, 70),
    )


def test_tokens_by_whether_their_experts_agree(
    capture: Callable[..., Capture], make_run: Callable[..., Run],
    measure: Callable[..., dict[str, Any]],
) -> None:  # fmt: skip
    quiet = dump(capture, 1, [[0, 0], [0, 0]], [[0.01, 0.01], [0.01, 0.01]])
    odd = dump(capture, 5, [[0, 1], [0, 0]], [[0.01, 2.0], [0.01, 0.01]])
    m = measure(TOOL, make_run(captures=[quiet, odd]))
    assert (m["n_tokens"], m["share_differs"]) == (8, 0.125)
    assert m["difference_apart"] == 2.0
    assert m["difference_same"] == pytest.approx(0.01)
    assert m["excess"] == pytest.approx(200)
    assert m["carried_share"] == pytest.approx(2 / 2.07, abs=1e-5)
    assert (m["last_good_step"], m["first_bad_step"]) == (1, 5)


def test_other_experts_without_harm_are_not_dated(
    capture: Callable[..., Capture], make_run: Callable[..., Run],
    measure: Callable[..., dict[str, Any]],
) -> None:  # fmt: skip
    m = measure(TOOL, make_run(captures=[dump(capture, 1, [[1, 0, 1]], [[0.01, 0.01, 0.01]])]))
    assert m["share_differs"] == pytest.approx(2 / 3, abs=1e-5)
    assert m["excess"] == pytest.approx(1)
    assert m["first_bad_step"] is None


def test_without_the_experts_of_both_sides(
    make_run: Callable[..., Run], missing: Callable[..., str]
) -> None:
    assert "experts of both sides" in missing(TOOL, make_run())
