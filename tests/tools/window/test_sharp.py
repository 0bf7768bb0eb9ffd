"""Single steps that stand out, by hand and beside look-alikes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Run

TOOL = "find_sharp_steps"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def test_hand_computed(make_run: MakeRun, measure: Measure) -> None:
    # In turn 1 and 3, so that around a step the median is 2 or the more frequent of both, and each
    # value lies 1 from 2: scatter 1.4826. The step with 22 lies between two halves of 10.
    kl = np.tile([1.0, 3.0], 30)
    kl[30] = 22.0
    found = measure(TOOL, make_run(signals={"kl_ref": kl}))
    assert (found["kl_step"], found["kl_value"], found["kl_level"]) == (31, 22.0, 2.0)
    assert found["kl_size"] == pytest.approx(20 / 1.4826, abs=1e-3)
    assert found["loss_size"] is found["outcome_size"] is None


@pytest.mark.parametrize("shape", ["noise", "rise", "level"])
def test_noise_a_rise_and_a_new_level_are_no_spike(
    make_run: MakeRun, measure: Measure, shape: str
) -> None:
    noise = np.random.default_rng(3).normal(0.0, 0.02, 120)
    add = {
        "noise": np.zeros(120),
        "rise": np.linspace(0, 1, 120),
        "level": np.repeat([0.0, 1.0], 60),
    }[shape]
    size = measure(TOOL, make_run(signals={"kl_ref": 1.0 + noise + add}))["kl_size"]
    assert size < 8
