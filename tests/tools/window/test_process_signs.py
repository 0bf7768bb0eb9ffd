from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from firstbad.tools.errors import NoData
from firstbad.tools.readers.aliases import alias_of
from firstbad.tools.run import Run, Signal, Signals
from firstbad.tools.window.process_signs import read_process_signs  # "read_process_signs"

Make = Callable[..., Run]


def test_the_phase_that_grew_is_named(make_run: Make) -> None:
    run = make_run(
        signals={
            "step_time": [2.0] * 20 + [6.0] * 20,
            "gpu_util": [90.0] * 20 + [10.0] * 20,
            "throughput": [100.0] * 20 + [25.0] * 20,
            "phase_seconds/reward": [0.5] * 20 + [4.0] * 20,
            "phase_seconds/gen": [1.0] * 20 + [1.5] * 20,
        },
        events=[("error", 22, "judge"), ("resume", 35, "resumed")],
    )
    found = read_process_signs(run, before=20, after=21)
    m = found.metrics
    assert (m.step_time_factor, m.gpu_util_before, m.gpu_util_after) == (3.0, 90.0, 10.0)
    assert (m.throughput_factor, m.phase_seconds_gained, m.phase_share) == (0.25, 3.5, 0.875)
    assert (m.n_signs, m.events_at_change) == (5, 1)
    assert found.quote == "Most of it is `reward`."


def test_a_name_from_the_log_cannot_leave_its_quotes(make_run: Make) -> None:
    run = make_run(signals={"phase_seconds/a`b\x1b[31m" + "x" * 90: [1.0] * 10 + [2.0] * 10})
    assert read_process_signs(run, before=10, after=11).quote == "Most of it is `ab[31m" + (
        "x" * 54 + "`."
    )


def test_a_steady_process_has_factors_of_one(make_run: Make) -> None:
    m = read_process_signs(make_run(signals={"step_time": [2.0, 2.1] * 15})).metrics
    assert m.step_time_factor == pytest.approx(1.0, abs=0.05)
    assert (m.phase_seconds_gained, m.events_at_change) == (None, 0)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("system/gpu.0.memoryAllocated", True),
        ("ray/cpu.util", True),
        ("rollout_queue_size", True),
        ("pending_requests", True),
        ("n_workers", True),
        ("memorable_score", False),
        ("my_metric", False),
    ],
)
def test_further_signs_are_shown_under_their_own_names(
    make_run: Make, key: str, shown: bool
) -> None:
    run = make_run(signals={"step_time": [2.0] * 20 + [6.0] * 20})
    values = np.array([3.0] * 20 + [40.0] * 20)
    unknown = {key: Signal(key, np.arange(1, 41), values, key)}
    run.signals = Signals(run.signals.known, unknown)
    found = read_process_signs(run, before=20, after=21)
    assert ((key, "", 3.0, 40.0) in found.tables[0].rows) is shown
    assert found.metrics.phase_seconds_gained is None


def test_too_few_steps_on_a_side_are_no_data(make_run: Make) -> None:
    run = make_run(signals={"step_time": [2.0] * 20})
    with pytest.raises(NoData):
        read_process_signs(run, before=18, after=19)
    with pytest.raises(NoData):
        read_process_signs(make_run(signals={"kl_ref": [0.1] * 20}))


@pytest.mark.parametrize(
    ("framework", "key", "name"),
    [
        ("verl", "timing_s/gen", "phase_seconds/gen"),
        ("verl", "timing_s/step", "step_time"),
        ("verl", "perf/throughput", "throughput"),
        ("openrlhf", "timing/broadcast", "phase_seconds/broadcast"),
        ("slime", "perf/rollout_time", "phase_seconds/rollout"),
        ("slime", "perf/step_time", "step_time"),
        ("skyrl", "timing/generate", "phase_seconds/generate"),
        ("trl", "profiling/Time taken: GRPOTrainer.compute_loss", "phase_seconds/compute_loss"),
        ("unknown", "phase_seconds/reward", "phase_seconds/reward"),
    ],
)
def test_phases_are_known_by_the_names_of_frameworks(framework: str, key: str, name: str) -> None:
    found = alias_of(key, framework)
    assert found is not None
    assert (found.name, found.unit) == (
        name,
        "tokens per second" if name == "throughput" else "seconds",
    )
