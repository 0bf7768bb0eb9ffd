"""Logged length, truncation, entropy and KL against rows and captured tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Capture, Captures, RolloutBatch, Run, Signal, Signals

TOOL = "recompute_figures"
ROWS, TOKENS = 8, 4
LENGTHS = np.array([1, 2, 3, 4, 1, 2, 3, 4])
INSIDE = np.arange(TOKENS) < LENGTHS[:, None]

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def of_rows(make_run: MakeRun, batch: Callable[..., RolloutBatch]) -> Callable[..., Run]:
    """Six steps of eight rows: 20 tokens, the two rows of four tokens are cut."""

    def made(config: dict[str, object] | None = None, **fields: Any) -> Run:
        rows = {
            "n_tokens": LENGTHS,
            "finish": ["length" if n == 4 else "stop" for n in LENGTHS],
            "advantage": np.where(LENGTHS > 2, 1.0, 0.0),
            **fields.pop("rows", {}),
        }
        batches = [
            batch(step=s, rewards={"right": [float(s > i) for i in range(ROWS)]}, **rows)
            for s in range(1, 7)
        ]
        settings = {"generation_batch_size": ROWS, **(config or {})}
        return make_run(rollouts=batches, config=settings, **{"framework": "own", **fields})

    return made


@pytest.fixture
def of_tokens(make_run: MakeRun, capture: Callable[..., Capture]) -> Callable[..., Run]:
    """Six captured steps of eight rows, with the arrays given; outside the mask stands nonsense."""

    def made(
        *, signals: dict[str, Any], rows: int = ROWS, config: Any = None, **arrays: Any
    ) -> Run:
        values = {k: np.where(INSIDE, v, 9.0) for k, v in arrays.items()}
        captures = [
            capture(
                step=s,
                token_id=np.where(INSIDE, 3, 0),
                completion_mask=INSIDE,
                loss_mask=INSIDE,
                **values,
            )
            for s in range(1, 7)
        ]
        settings = {"generation_batch_size": rows, **(config or {})}
        return make_run(captures=captures, signals=signals, config=settings)

    return made


def test_length_and_truncation_by_hand(of_rows: MakeRun, measure: Measure) -> None:
    # 20 tokens of 8 rows are 2.5, with a stop token each 3.5; 2 of 8 are cut.
    right = {"completion_length_mean": [2.5] * 6, "truncation_rate": [0.25] * 6}
    found = measure(TOOL, of_rows(signals=right))
    assert (found["length_differs"], found["truncation_differs"]) == (0, 0)
    assert (found["n_compared"], found["n_signals"], found["first_bad_step"]) == (12, 2, None)
    wrong = {"completion_length_mean": [2.5] * 3 + [5.0] * 3, "truncation_rate": [0.75] * 6}
    found = measure(TOOL, of_rows(signals=wrong), length=True)
    assert (found["length_differs"], found["length_factor"]) == (0.5, 2)
    assert (found["truncation_differs"], found["truncation_off"]) == (1, 0.5)
    assert (found["n_asked"], found["asked_differs"], found["most_differs"]) == (1, 0.5, 1)
    assert (found["last_good_step"], found["first_bad_step"]) == (3, 4)


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("completion_length_mean", 1.5),  # the stop token does not count
        ("completion_length_mean", 3.5),  # or counts besides
        ("truncation_rate", 0.5),  # 2 of the 4 rows with an advantage
    ],
)
def test_every_common_reading_of_a_name_fits(
    of_rows: MakeRun, measure: Measure, name: str, level: float
) -> None:
    assert measure(TOOL, of_rows(signals={name: [level] * 6}))["most_differs"] == 0


def test_rows_that_are_only_a_part_say_nothing(
    of_rows: MakeRun, missing: Callable[..., str]
) -> None:
    signals = {"completion_length_mean": [9.0] * 6, "truncation_rate": [0.9] * 6}
    run = of_rows(signals=signals, config={"generation_batch_size": 2 * ROWS})
    assert "recomputed" in missing(TOOL, run)
    # ... nor do rows of which no setting says how many there are, unless another mean is theirs.
    run = of_rows(signals=signals, config={"generation_batch_size": None})
    assert "recomputed" in missing(TOOL, run)


def test_another_mean_that_is_right_vouches_for_the_rows(
    of_rows: MakeRun, measure: Measure
) -> None:
    signals = {
        "truncation_rate": [0.9] * 6,
        "reward_part/right": [np.mean([s > i for i in range(ROWS)]) for s in range(1, 7)],
    }
    run = of_rows(signals=signals, config={"generation_batch_size": None})
    assert measure(TOOL, run)["truncation_differs"] == 1


def test_trl_counts_rows_without_a_stop_token_whatever_ended_them(
    of_rows: MakeRun, missing: Callable[..., str]
) -> None:
    run = of_rows(signals={"truncation_rate": [0.9] * 6}, framework="trl")
    assert "recomputed" in missing(TOOL, run)


ENTROPY = np.arange(ROWS)[:, None] + np.zeros(TOKENS)
"""Row i has entropy i at each token."""


@pytest.mark.parametrize(
    ("logged", "share"),
    [
        (3.7, 0.0),  # over tokens: (0 + 2 + 6 + 12 + 4 + 10 + 18 + 28) / 20 = 4.0; within 10 %
        (3.5, 0.0),  # over sequences: 28 / 8
        (8.0, 1.0),  # twice the mean over tokens
        (6.0, 1.0),
    ],
)
def test_entropy_by_hand(of_tokens: MakeRun, measure: Measure, logged: float, share: float) -> None:
    found = measure(TOOL, of_tokens(signals={"entropy": [logged] * 6}, entropy=ENTROPY))
    assert found["entropy_differs"] == share
    assert found["sampled"]


@pytest.mark.parametrize(("loss_type", "least"), [("dr_grpo", 2.0), ("dapo", 10.0)])
def test_a_trainer_may_aggregate_entropy_as_its_loss(
    of_tokens: MakeRun, measure: Measure, loss_type: str, least: float
) -> None:
    # Sums over tokens, mean over sequences: 80 / 8; over a cap of 5 tokens: 80 / 40. 8.0 is none.
    config = {"loss_type": loss_type, "max_completion_length": 5}
    for logged, share in ((least, 0.0), (10.0, 0.0), (1.3, 1.0), (8.0, 1.0)):
        signals = {"entropy": [logged] * 6}
        run = of_tokens(signals=signals, entropy=ENTROPY, config=config)
        assert measure(TOOL, replace(run, framework="unknown"))["entropy_differs"] == share
        assert measure(TOOL, run)["entropy_differs"] == float(logged != 3.5)


def test_where_part_of_the_rows_was_captured_the_scatter_of_rows_is_allowed_for(
    of_tokens: MakeRun, measure: Measure
) -> None:
    even = 1.0 + 0.01 * np.arange(ROWS)[:, None] + np.zeros(TOKENS)
    for values, share in ((even, 1.0), (ENTROPY, 0.0)):
        logged = [0.4 * float(values[INSIDE].mean())] * 6
        run = of_tokens(signals={"entropy": logged}, entropy=values, rows=2 * ROWS)
        assert measure(TOOL, run)["entropy_differs"] == share


REF = -1.0 - 0.1 * np.arange(ROWS)[:, None] + np.zeros(TOKENS)


def test_kl_by_hand_and_by_its_other_estimators(of_tokens: MakeRun, measure: Measure) -> None:
    away = (REF + 1.0)[INSIDE]  # reference less own log-prob
    k3, k1 = float((np.exp(away) - away - 1).mean()), float(-away.mean())
    for logged, share in ((k3, 0.0), (k1, 0.0), (2 * k3, 1.0), (0.02 * k3, 1.0)):
        run = of_tokens(
            signals={"kl_ref": [logged] * 6},
            logp_new=-np.ones((ROWS, TOKENS)),
            logp_ref=REF,
            config={"beta": 0.02},
        )
        assert measure(TOOL, run, kl=True)["kl_differs"] == share
    # A trainer that is not known may log the term of the loss.
    assert measure(TOOL, replace(run, framework="unknown"))["kl_differs"] == 0


def test_kl_of_a_part_of_the_rows_is_not_judged(
    of_tokens: MakeRun, missing: Callable[..., str]
) -> None:
    run = of_tokens(
        signals={"kl_ref": [9.0] * 6}, logp_new=-np.ones((ROWS, TOKENS)), logp_ref=REF, rows=16
    )
    assert "recomputed" in missing(TOOL, run)


def test_steps_of_several_updates_are_not_judged(
    of_tokens: MakeRun, missing: Callable[..., str], measure: Measure
) -> None:
    run = of_tokens(signals={"entropy": [9.0] * 6}, entropy=ENTROPY)
    assert measure(TOOL, run)["entropy_differs"] == 1
    settings = replace(run.config, values={**run.config.values, "updates_per_batch": 4.0})
    assert "recomputed" in missing(TOOL, replace(run, framework="verl", config=settings))
    assert "recomputed" in missing(TOOL, replace(run, framework="verl"))


def test_what_differs_is_said_with_its_reading(
    of_tokens: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    found = evidence(TOOL, of_tokens(signals={"entropy": [8.0] * 6}, entropy=ENTROPY))
    assert found.quote.startswith("`entropy` is logged as 8 where the captured tokens give ")
    assert found.signal == "logged entropy"
    assert found.tables[0].rows[0][:3] == (1, "entropy", 8.0)


def test_a_step_label_that_is_one_off(of_tokens: MakeRun, measure: Measure) -> None:
    levels = np.array([1.0, 5.0, 2.0, 7.0, 3.0, 9.0])
    run = of_tokens(signals={}, entropy=ENTROPY)
    captures = {
        c.step: replace(c, arrays={**c.arrays, "entropy": np.where(INSIDE, level, 9.0)})
        for c, level in zip(run.captures, levels, strict=True)
    }
    own = Captures(list(captures), captures.__getitem__)
    for late, shifted in ((1, 1), (0, 0)):
        logged = Signal("entropy", np.arange(1, 7) + late, levels, "entropy")
        found = measure(TOOL, replace(run, captures=own, signals=Signals({"entropy": logged}, {})))
        assert (found["entropy_differs"], found["n_shifted"]) == (0, shifted)


@pytest.mark.parametrize(("times", "share", "bits"), [(1, 0, 0), (1 / np.log(2), 0, 1), (2, 1, 0)])
def test_entropy_in_bits(
    of_tokens: MakeRun, measure: Measure, times: float, share: float, bits: int
) -> None:
    logged = [times * float(ENTROPY[INSIDE].mean())] * 6
    run = of_tokens(signals={"entropy": logged}, entropy=ENTROPY)
    found = measure(TOOL, replace(run, framework="unknown"))
    assert (found["entropy_differs"], found["entropy_in_bits"]) == (share, bits)
    if bits:  # TRL writes nats
        assert measure(TOOL, run)["entropy_differs"] == 1
