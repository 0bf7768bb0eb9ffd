"""Rows that do not reach the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "measure_loss_scatter"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
ROWS = 48


def trained(
    make_run: MakeRun,
    batch: MakeBatch,
    *,
    left_out: float = 0.0,
    onset: int = 1,
    factor: float = 1.0,
    seed: int = 0,
) -> Run:
    """60 steps of 6 groups, of whose rows a share, drawn anew each step, is not in the loss."""
    rng = np.random.default_rng(seed)
    rows, loss = [], []
    for step in range(1, 61):
        right = rng.random((6, 8)) < rng.uniform(0.2, 0.8, (6, 1))
        centred = right - right.mean(axis=1, keepdims=True)
        a = (centred / (right.std(axis=1, ddof=1, keepdims=True) + 1e-4)).ravel()
        n = rng.integers(8, 20, ROWS)
        kept = np.ones(ROWS, bool)
        kept[rng.permutation(ROWS)[: round(left_out * ROWS)]] = step < onset
        loss.append(float(-factor * (a * n)[kept].sum() / n.sum()))
        scores = {"correct": right.ravel().astype(float).tolist()}
        rows.append(batch(step, rewards=scores, advantage=a, n_tokens=n, size=8))
    config = {"loss_type": "dapo", "num_generations": 8, "gradient_accumulation_steps": 4}
    return make_run(rollouts=rows, signals={"loss": loss}, config=config)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.2, 0.25, 0.5])
def test_the_share_that_is_left_out(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, share: float, seed: int
) -> None:
    found = measure(TOOL, trained(make_run, batch, left_out=share, seed=seed))
    # Sampling without replacement: q (1 - q) of the summed squares, as advantages add up to 0.
    assert found["distance"] == pytest.approx(share * (1 - share), rel=0.5)
    assert found["accumulation_steps"] == 4
    assert found["rows_missing"] == pytest.approx(share, abs=0.25)
    assert found["from_start"]


@pytest.mark.parametrize("seed", range(3))
def test_since_when(make_run: MakeRun, batch: MakeBatch, measure: Measure, seed: int) -> None:
    found = measure(TOOL, trained(make_run, batch, left_out=0.25, onset=ONSET, seed=seed))
    assert found["last_good_step"] < ONSET <= found["first_bad_step"] < ONSET + 5
    assert found["sampled"]


def test_all_rows(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    found = measure(TOOL, trained(make_run, batch))
    assert found["distance"] < 1e-9
    assert found["rows_missing"] is found["first_bad_step"] is None


def test_a_factor_keeps_the_correlation(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    found = measure(TOOL, trained(make_run, batch, factor=2.0))
    assert found["correlation"] == pytest.approx(1)


def test_losses_of_other_steps_have_no_slope(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    run = trained(make_run, batch)
    loss = run.signals.known["loss"]
    mixed = make_run(
        rollouts=list(run.rollouts.batches()),
        signals={"loss": np.random.default_rng(0).permutation(loss.values).tolist()},
        config=dict(run.config.values),
    )
    assert abs(measure(TOOL, mixed)["slope"]) < 0.3
    assert measure(TOOL, trained(make_run, batch, left_out=0.25))["slope"] > 0.3


def test_an_engine_weighs_the_rows(
    make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]
) -> None:
    run = trained(make_run, batch)
    engine = make_run(
        rollouts=list(run.rollouts.batches()),
        signals={"loss": run.signals.known["loss"].values.tolist()},
        config={**run.config.values, "use_vllm": True},
    )
    assert "engine" in missing(TOOL, engine)


def test_too_few_steps(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "loss" in missing(TOOL, make_run())
