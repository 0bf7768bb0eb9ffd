"""Which weights fit the engine's log-probs: claimed, first, or some between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, Run

TOOL = "fit_version"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def dump(make: Callable[..., Capture], step: int, back: float, noise: float = 0.0) -> Capture:
    """A trainer 1 nat or so from its reference; the engine `back` of the way to it."""
    rng = np.random.default_rng(step)
    new = -2.0 + 0.3 * rng.normal(size=(20, 30))
    ref = new + rng.normal(size=new.shape)
    return make(
        step,
        token_id=np.full(new.shape, 5),
        source=np.full(new.shape, 3),
        logp_old=new,
        logp_ref=ref,
        logp_engine=new + back * (ref - new) + noise * rng.normal(size=new.shape),
    )


@pytest.mark.parametrize(("back", "fits"), [(1.0, 0.0), (0.4, 1.5), (0.2, 4.0)])
def test_weights_on_the_way_back_to_the_first_ones(
    back: float, fits: float, capture: Callable[..., Capture], make_run: MakeRun, measure: Measure
) -> None:
    m = measure(TOOL, make_run(captures=[dump(capture, 1, 0.0), dump(capture, 2, back)]))
    assert m["way_back"] == pytest.approx(back, abs=1e-5)
    assert m["way_back_fit"] == pytest.approx(1.0, abs=1e-5)
    assert m["reference_fits"] == pytest.approx(fits, abs=1e-4)
    assert (m["last_good_step"], m["first_bad_step"], m["n_tokens"]) == (1, 2, 600)


def test_another_kernel_lies_on_no_way(
    capture: Callable[..., Capture], make_run: MakeRun, measure: Measure
) -> None:
    m = measure(TOOL, make_run(captures=[dump(capture, 1, 0.0, noise=0.5)]))
    assert abs(m["way_back"]) < 0.1
    assert m["way_back_fit"] < 0.02
    assert m["from_start"]


def test_sides_that_agree_leave_nothing_to_fit(
    capture: Callable[..., Capture], make_run: MakeRun, measure: Measure
) -> None:
    m = measure(TOOL, make_run(captures=[dump(capture, 1, 0.0)]))
    assert (m["n_tokens"], m["way_back"], m["first_bad_step"]) == (0, None, None)


def test_without_a_reference(
    capture: Callable[..., Capture], make_run: MakeRun, missing: Callable[..., str]
) -> None:
    whole = dump(capture, 1, 0.5).arrays
    bare = capture(1, **{n: a for n, a in whole.items() if n != "logp_ref"})
    assert "engine, trainer and reference" in missing(TOOL, make_run(captures=[bare]))
