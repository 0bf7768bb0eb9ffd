"""Evaluations whose set or setting changes, and ones whose score moves by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import RolloutBatch, Rollouts, Run, Signal, Signals

TOOL = "compare_evaluations"
MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
STEPS = np.arange(10, 90, 10)
FALLS = [0.5, 0.52, 0.55, 0.56, 0.3, 0.31, 0.33, 0.35]


def logged(score: Sequence[float]) -> dict[str, Any]:
    """Signals of evaluations at every tenth step, and a training reward that rises slowly."""
    found: dict[str, Any] = {
        "eval/reward_mean": Signal("eval/reward_mean", STEPS, np.array(score), "eval_reward"),
        "reward_mean": np.linspace(0.5, 0.66, 80),
    }
    return found


def with_unknown(run: Run, **more: Any) -> Run:
    """The same run with keys that no alias explains."""
    unknown = {k: Signal(k, STEPS, np.array(v, float), k) for k, v in more.items()}
    run.signals = Signals(run.signals.known, unknown)
    return run


def asked(batch: MakeBatch, prompts: Callable[[int], Sequence[str]]) -> Rollouts:
    """Rollouts of the evaluations, by the prompts of the i-th of them."""
    made = {
        int(s): batch(int(s), rewards={"r": [0.0] * len(prompts(i))}, prompts=list(prompts(i)))
        for i, s in enumerate(STEPS)
    }
    return Rollouts(list(made), lambda steps: (made[s] for s in steps))


@pytest.mark.parametrize(
    ("change", "other"),
    [
        (lambda i: [f"old {k}" for k in range(8)], None),  # the same set
        (lambda i: [f"{i} {k}" for k in range(8)], None),  # drawn anew each time
        (lambda i: [f"{'new' if i >= 4 else 'old'} {k}" for k in range(8)], 1.0),
        (lambda i: [f"{'new' if i >= 4 and k < 6 else 'old'} {k}" for k in range(8)], 0.75),
        (lambda i: [f"{'new' if i >= 4 and k < 3 else 'old'} {k}" for k in range(8)], None),
        (lambda i: [f"{'new' if i == 4 else 'old'} {k}" for k in range(8)], None),  # once
        (lambda i: [f"{'new' if i >= 1 else 'old'} {k}" for k in range(8)], None),  # the first one
    ],
)
def test_other_prompts(
    make_run: MakeRun,
    batch: MakeBatch,
    measure: Measure,
    change: Callable[[int], Sequence[str]],
    other: float | None,
) -> None:
    run = make_run(signals=logged(FALLS), evaluations=asked(batch, change))
    found = measure(TOOL, run)
    assert (found["set_known"], found["set_changed"]) == (True, other is not None)
    assert found["other_prompts"] == other
    if other is not None:
        assert (found["last_good_step"], found["first_bad_step"]) == (40, 50)
        assert (found["leap"], found["score_after"]) == (-0.26, pytest.approx(0.94 / 3, abs=1e-6))
        assert found["leap_over_usual"] == pytest.approx(0.26 / 0.02)
        assert found["training_move"] == pytest.approx(0.02, abs=0.001)
        assert found["beyond_training"] == pytest.approx(0.28, abs=0.001)


@pytest.mark.parametrize(
    ("after", "sizes"), [(400, (200.0, 400.0)), (202, None)], ids=["resized", "rounding"]
)
@pytest.mark.parametrize("counted", [True, False])
def test_another_number_of_samples(
    make_run: MakeRun,
    measure: Measure,
    after: int,
    sizes: tuple[float, float] | None,
    counted: bool,
) -> None:
    size = np.array([200.0] * 4 + [float(after)] * 4)
    seconds = np.array([3.0, 3.5, 2.5, 3.0, 6.1, 6.2, 5.9, 6.0])
    run = make_run(signals=logged(FALLS))
    if counted:
        with_unknown(run, **{"eval/n_samples": size})
    else:  # rounded to three digits, as the trainer logs them
        with_unknown(run, eval_runtime=seconds, eval_samples_per_second=np.round(size / seconds, 3))
    found = measure(TOOL, run)
    assert found["set_changed"] is (sizes is not None)
    if sizes is not None:
        assert (found["size_before"], found["size_after"]) == sizes
        assert found["first_bad_step"] == 50


@pytest.mark.parametrize(
    ("text", "changed"),
    [("num_generations_eval: 8 -> 1", True), ("beta: 0.0 -> 0.04", False), ("retrieval on", False)],
)
def test_a_setting_on_record(
    make_run: MakeRun, evidence: Callable[..., Evidence], text: str, changed: bool
) -> None:
    run = make_run(signals=logged(FALLS), events=[("config_change", 44, text)])
    found = evidence(TOOL, run, asked=True)
    metrics = found.metrics or {}
    assert (metrics["settings_changed"], metrics["set_changed"]) == (changed, changed)
    assert metrics["asked"] is True
    assert metrics["first_bad_step"] == (50 if changed else None)
    assert found.quote == (text if changed else "")


def test_a_fall_that_training_shows_too(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    signals = logged(FALLS)
    signals["reward_mean"] = np.where(np.arange(80) < 40, 0.6, 0.34)
    change = asked(batch, lambda i: [f"{'new' if i >= 4 else 'old'} {k}" for k in range(8)])
    found = measure(TOOL, make_run(signals=signals, evaluations=change))
    assert found["beyond_training"] == 0


def test_no_score_is_no_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "no score of two evaluations" in missing(TOOL, make_run(signals={"reward_mean": [1.0]}))


@pytest.mark.parametrize(("n", "known"), [(12, False), (5000, True)])
def test_a_speed_of_three_decimals_tells_no_small_set_of_slow_evaluations(
    make_run: MakeRun, evidence: Callable[..., Evidence], n: int, known: bool
) -> None:
    """12 samples in 2,400 and 2,800 seconds are 0.005 and 0.004 a second: 12 and 11 of them."""
    seconds = np.array([2400.0] * 4 + [2800.0] * 4)
    run = make_run(signals=logged(FALLS))
    with_unknown(run, eval_runtime=seconds, eval_samples_per_second=np.round(n / seconds, 3))
    found = evidence(TOOL, run)
    assert ((found.metrics or {}).get("set_known") is True) is known
    assert not (found.metrics or {}).get("set_changed")
