"""Logged rows and rollouts that are means of the same steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from firstbad.tools.loss_units import Units
from firstbad.tools.run import RolloutBatch, Run, Signal

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def at(steps: Sequence[int], values: Any) -> Signal:
    return Signal("of some steps", np.array(steps), np.asarray(values, float), "of some steps", "")


def config(accumulation: int = 2, **more: int) -> dict[str, int]:
    return {"gradient_accumulation_steps": accumulation, **more}


@pytest.mark.parametrize(
    ("settings", "batches", "logged", "steps", "opened"),
    [
        # One batch a step: each row by itself, also where rollouts or rows are missing.
        (config(), [1, 2, 4], [1, 2, 3], [1, 2], [0, 1]),
        # Two steps a batch.
        (config(steps_per_generation=4), [1, 3, 5], [1, 2, 3, 4, 5], [2, 4], [0, 2]),
        # Two passes over each batch: the first counts.
        (config(num_iterations=2), [1, 3], [1, 2, 3, 4], [1, 3], [0, 2]),
        # Rows that are means of three steps, and rollouts of all but one.
        (config(logging_steps=3), [1, 2, 3, 4, 6, 7, 8, 9], [3, 6, 9], [3, 9], [0, 6]),
        # The rollouts of the last step alone.
        (config(logging_steps=3), [3, 6, 9], [3, 6, 9], [], []),
        # Two passes that a row averages over: no first pass to be had.
        (config(num_iterations=2, logging_steps=2), [2, 4], [2, 4], [2, 4], [0, 2]),
        # Two batches a step, of which the last is written.
        (config(steps_per_generation=1), [1, 2], [1, 2], [], []),
        # Three micro-batches of a batch and two of a step: three steps for two batches.
        (config(steps_per_generation=3), [1, 2, 4, 5], [1, 2, 3, 4], [3], [0]),
    ],
)
def test_by_hand(
    make_run: MakeRun,
    settings: dict[str, int],
    batches: list[int],
    logged: list[int],
    steps: list[int],
    opened: list[int],
) -> None:
    run = make_run(config=settings)
    found = Units(run, np.array(batches), np.array(logged))
    assert found.steps.tolist() == steps
    assert found.opened.tolist() == opened


def test_batches_begin_anew_at_a_resume(make_run: MakeRun) -> None:
    settings = config(steps_per_generation=4)
    run = make_run(config=settings, events=[("resume", 4, "resumed")])
    found = Units(run, np.array([1, 4, 6]), np.arange(1, 8))
    assert found.steps.tolist() == [2, 5, 7]
    assert found.opened.tolist() == [0, 3, 5]


def test_means_over_a_unit(make_run: MakeRun) -> None:
    signals = {"loss": [1.0, 3.0, 5.0, 9.0]}
    run = make_run(config=config(steps_per_generation=4), signals=signals)
    found = Units(run, np.array([1, 3]), np.arange(1, 5))
    assert found.logged(run.signals.get("loss")).tolist() == [2.0, 7.0]
    assert found.mean(np.array([10.0, 20.0])).tolist() == [10.0, 20.0]
    assert found.of_batches(np.array([1.0, 2.0])).tolist() == [1.0, 2.0]
    run = make_run(config=config(logging_steps=2), signals=signals)
    found = Units(run, np.arange(1, 5), np.array([2, 4]))
    assert found.mean(np.arange(4.0)).tolist() == [0.5, 2.5]
    assert found.root(np.array([3.0, 4.0, 0.0, 2.0])).tolist() == [2.5, 1.0]
    assert np.isnan(found.logged(None)).all()


@pytest.mark.parametrize("factor", [1.0, 2.0])
@pytest.mark.parametrize("every", [1, 4])
def test_a_loss_that_is_a_mean_over_steps(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, factor: float, every: int
) -> None:
    # -sum(A n)/sum(n) = k/(20 + k) with A = 1, -1 and n = 10, 10 + k; a factor from step 42 on.
    steps = range(1, 81)
    more = [s * s % 61 for s in steps]
    rows = [
        batch(s, rewards={"r": [1, 0]}, advantage=[1, -1], n_tokens=[10, 10 + k])
        for s, k in zip(steps, more, strict=True)
    ]
    value = np.array([k / (20 + k) for k in more]) * np.where(np.array(steps) >= 42, factor, 1)
    logged = list(range(every, 81, every))
    run = make_run(
        rollouts=rows,
        signals={"loss": at(logged, value.reshape(-1, every).mean(axis=1))},
        config=config(logging_steps=every),
    )
    found = measure("check_loss_identity", run)
    assert found["n_steps"] == 80 // every
    if factor == 1:
        assert found["slope"] == pytest.approx(1, abs=1e-4)
        assert found["first_bad_step"] is None
        return
    assert found["factor"] == 2
    # The step at which it began is inside the bracket, though a mean over steps hides it.
    assert found["last_good_step"] < 42 <= found["first_bad_step"]
    assert found["sampled"] == (every > 1)


def test_two_updates_on_each_batch(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    """Each update trains an unknown half of the rows; both together train them all."""
    rng = np.random.default_rng(1)
    rows = [
        batch(s, rewards={"r": [1, 0]}, advantage=[1, -1], n_tokens=[10, 10 + s])
        for s in range(1, 61, 2)
    ]
    loss = []
    for s in range(1, 61, 2):
        apart = float(rng.normal())
        loss += [s / (20 + s) + apart, s / (20 + s) - apart]
    run = make_run(rollouts=rows, signals={"loss": loss}, config=config(steps_per_generation=4))
    found = measure("check_loss_identity", run)
    assert found["n_steps"] == 30
    assert (found["slope"], found["correlation"]) == (pytest.approx(1), pytest.approx(1))


def test_trained_tokens_of_two_updates_on_each_batch(make_run: MakeRun, measure: Measure) -> None:
    """A step that trains the longer half of its batch trains no padding."""
    signals = {
        "trained_tokens_mean": [48.0, 32.0] * 15,
        "completion_length_mean": at(range(1, 31, 2), [10.0] * 15),
        "completion_length_max": at(range(1, 31, 2), [14.0] * 15),
    }
    settings = config(steps_per_generation=4, per_device_train_batch_size=4)
    run = make_run(signals=signals, config=settings)
    found = measure("count_trained_tokens", run)
    assert found["n_steps"] == 15
    assert found["ratio_median"] == 1
    assert found["first_bad_step"] is None
    signals["trained_tokens_mean"] = [53.0, 37.0] * 15  # and here it does
    found = measure("count_trained_tokens", make_run(signals=signals, config=settings))
    assert found["excess_per_row"] == 1.25
    assert found["from_start"]
