"""The first value that is not finite, in the order of computation."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Capture, RolloutBatch, Run, Vocabulary

TOOL = "check_numbers"
NAN, INF = float("nan"), float("inf")

MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]


def test_hand_counted_values(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    # Two rows of three tokens, one of them padding: five log-probs and two advantages are looked
    # at; one log-prob is NaN, the -Inf under the padding is nobody's.
    made = capture(
        7,
        token_id=[[5, 6, 1], [5, 1, 0]],
        logp_new=np.array([[-1, NAN, -2], [-1, -1, -INF]], np.float32),
        advantage=[1.0, -1.0],
    )
    signals = {"loss": [0.1] * 9, "reward_mean": [0.5] * 9}
    found = measure(TOOL, make_run(captures=[made], vocabulary=words, signals=signals))
    assert (found["n_captures"], found["n_values"], found["n_signals"]) == (1, 7, 2)
    assert (found["nonfinite_captured"], found["nonfinite_logged_steps"]) == (1, 0)
    assert found["first_nonfinite_order"] == 1
    assert (found["last_good_step"], found["first_bad_step"]) == (6, 7)


def test_what_is_finite_beside_the_first_that_is_not(
    make_run: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    signals = {
        "ratio_max": [1.0] * 9,
        "kl_ref": [0.05] * 9,
        "loss": [-0.02] * 9,
        "grad_norm_preclip": [*[0.5] * 8, NAN],
    }
    found = evidence(TOOL, make_run(signals=signals))
    assert found.metrics is not None
    assert (found.metrics["first_nonfinite_order"], found.metrics["finite_beside"]) == (5, 3)
    assert "at step 9, where" in found.summary
    assert "`ratio_max` 1, `kl_ref` 0.05, `loss` -0.02 are finite" in found.summary
    # What comes later in the computation follows the break, and says nothing of it.
    early = {**signals, "kl_ref": [*[0.05] * 8, INF]}
    assert (evidence(TOOL, make_run(signals=early)).metrics or {})["finite_beside"] == 1


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("entropy", 1),
        ("ratio_mean", 2),
        ("kl_ref", 3),
        ("loss", 4),
        ("grad_norm_preclip", 5),
    ],
)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_breaks_first_is_named_by_its_place(
    simulate: MakeRun, measure: Measure, name: str, order: int, value: float
) -> None:
    def log(values: dict[str, Any], steps: Any) -> None:
        values[name][steps == 31] = value
        for later in ("loss", "grad_norm_preclip"):
            values[later][steps >= 32] = NAN

    found = measure(TOOL, simulate(1, log=log))
    assert (found["last_good_step"], found["first_bad_step"]) == (30, 31)
    assert found["first_nonfinite_order"] == order
    assert found["nonfinite_logged_steps"] == 30


@pytest.mark.parametrize(
    ("config", "at", "skips"),
    [
        ({"fp16": True}, [1, 2, 40], 3),
        ({"mixed_precision": "fp16"}, [40], 1),
        ({"fp16": False}, [1, 2, 40], 0),
        ({"fp16": True}, list(range(31, 61)), 0),  # to the end: no skipped step
    ],
)
def test_steps_that_a_loss_scaler_skips(
    simulate: MakeRun, measure: Measure, config: dict[str, object], at: list[int], skips: int
) -> None:
    def log(values: dict[str, Any], steps: Any) -> None:
        values["grad_norm_preclip"][np.isin(steps, at)] = INF

    found = measure(TOOL, simulate(1, log=log, config=config))
    assert found["scaler_skips"] == skips
    assert found["nonfinite_logged_steps"] == len(at) - skips
    assert found["first_bad_step"] == (None if skips else at[0])


def test_a_loss_that_overflows_with_its_gradient_is_no_skip(
    simulate: MakeRun, measure: Measure
) -> None:
    def log(values: dict[str, Any], steps: Any) -> None:
        for name in ("loss", "grad_norm_preclip"):
            values[name][steps == 31] = INF

    found = measure(TOOL, simulate(1, log=log, config={"fp16": True}))
    assert (found["scaler_skips"], found["nonfinite_logged_steps"]) == (0, 1)


def test_a_logged_entropy_was_not_captured(simulate: MakeRun, measure: Measure) -> None:
    def log(values: dict[str, Any], steps: Any) -> None:
        values["entropy"][steps == 31] = NAN

    found = measure(TOOL, simulate(1, log=log))
    assert (found["nonfinite_logged_steps"], found["nonfinite_captured"]) == (1, 0)


@pytest.mark.parametrize(("value", "order"), [(INF, 0), (0.5, None)])
def test_a_reward_that_is_not_finite_is_read_off_the_rollouts(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    value: float,
    order: int | None,
) -> None:
    """A logged mean may be NaN for gaps that the framework did not fill: no fault of numbers."""

    def scored(b: RolloutBatch) -> RolloutBatch:
        b.rewards["format"][3] = value
        return b

    def log(values: dict[str, Any], steps: Any) -> None:
        values["reward_mean"][steps == 31] = NAN

    found = measure(TOOL, changed.rebatch(simulate(1, log=log), scored))
    assert found["first_nonfinite_order"] == order
    assert found["first_bad_step"] == (None if order is None else 31)


def test_a_reward_that_is_not_finite_without_rollouts(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(signals={"reward_mean": [0.5, NAN, 0.5]}))
    assert (found["first_nonfinite_order"], found["first_bad_step"]) == (0, 2)


def test_at_one_step_the_earliest_in_the_computation_leads(
    simulate: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    def log(values: dict[str, Any], steps: Any) -> None:
        for name in ("grad_norm_preclip", "loss", "kl_ref"):
            values[name][steps == 31] = NAN

    found = evidence(TOOL, simulate(1, log=log))
    assert found.signal == "finiteness of kl_ref"
    assert [row[1] for row in found.tables[0].rows] == ["kl_ref", "loss", "grad_norm_preclip"]


def test_a_reward_part_that_was_not_scored_is_no_fault(simulate: MakeRun, measure: Measure) -> None:
    def log(values: dict[str, Any], steps: Any) -> None:
        values["reward_part/format"][steps > 5] = NAN

    found = measure(TOOL, simulate(1, log=log))
    assert found["nonfinite_logged_steps"] == 0
    assert found["first_bad_step"] is None


@pytest.mark.parametrize(
    ("config", "low"),
    [({"bf16": True}, True), ({"fp16": True}, True), ({"fp16": False, "bf16": False}, False)],
)
def test_declared_precision(
    make_run: MakeRun, measure: Measure, config: dict[str, object], low: bool
) -> None:
    run = make_run(signals={"loss": [0.1]}, config=config)
    assert measure(TOOL, run)["low_precision_config"] is low


def test_not_finite_from_the_start(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(signals={"loss": [NAN, NAN, 0.1]}))
    assert found["from_start"]
    assert (found["last_good_step"], found["first_bad_step"]) == (None, 1)


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "no captures and no metrics" in missing(TOOL, make_run())
    nothing = make_run(signals={"reward_part/format": [NAN] * 5})
    assert "no finite value at all" in missing(TOOL, nothing)


def test_a_log_of_nan_alone_is_no_lack_of_data(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(signals={"loss": [NAN] * 5}))
    assert found["nonfinite_logged_steps"] == 5
    assert found["from_start"]


@settings(max_examples=10, derandomize=True)
@given(at=st.integers(2, 19), by=st.integers(0, 1000), names=st.permutations(["loss", "kl_ref"]))
def test_dates_move_with_the_steps_and_the_order_of_signals_does_not_matter(
    make_run: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    at: int,
    by: int,
    names: list[str],
) -> None:
    values = [NAN if s == at else 0.1 for s in range(1, 21)]
    run = make_run(signals=dict.fromkeys(names, values))
    found = measure(TOOL, changed.shift_steps(run, by))
    assert (found["last_good_step"], found["first_bad_step"]) == (at - 1 + by, at + by)
    assert found["first_nonfinite_order"] == 3


# ------------------------------------------------------------------ behind a mask, in token dumps

IDS = [[5, 6, 1], [5, 6, 7]]
TRAINED = [[1, 1, 1], [0, 0, 0]]
"""The second row was cut and is left out of the loss."""


def dump(capture: MakeCapture, step: int, old: float, new: float = -1.0, **fields: Any) -> Capture:
    """Log-probs of -1 but for the last token of the masked row."""
    value = np.full((2, 3), -1.0, np.float32)
    olds, news = value.copy(), value.copy()
    olds[1, 2], news[1, 2] = old, new
    return capture(
        step, token_id=IDS, loss_mask=TRAINED, logp_old=olds, logp_new=news,
        advantage=[1.0, -1.0], **fields,
    )  # fmt: skip


def test_what_is_masked_and_selected_away_is_no_fault(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    signals = {"loss": [0.1] * 9, "grad_norm_preclip": [1.0] * 9}
    dumps = [dump(capture, 4, -1.0), dump(capture, 8, NAN)]
    found = measure(TOOL, make_run(captures=dumps, vocabulary=words, signals=signals))
    assert (found["nonfinite_captured"], found["nonfinite_logged_steps"]) == (0, 0)
    assert found["first_bad_step"] is None


def test_what_is_masked_and_multiplied_reaches_the_loss(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    signals = {"loss": [*[0.1] * 7, NAN, NAN], "grad_norm_preclip": [*[1.0] * 7, NAN, NAN]}
    dumps = [dump(capture, 4, -1.0), dump(capture, 8, NAN)]
    run = make_run(captures=dumps, vocabulary=words, signals=signals)
    found = measure(TOOL, run)
    assert (found["nonfinite_masked"], found["forward_finite"]) == (1, True)
    assert (found["nonfinite_captured"], found["first_bad_step"]) == (0, 8)
    # Sound steps hold it too: then it is not what broke the step.
    usual = make_run(
        captures=[dump(capture, 4, NAN), dump(capture, 8, NAN)], vocabulary=words, signals=signals
    )
    assert measure(TOOL, usual)["nonfinite_masked"] == 0


@pytest.mark.parametrize(
    ("log_ratio", "over"), [(5, 0), (20, 0), (60, 0), (88, 0), (89, 1), (100, 1)]
)
def test_log_ratios_of_masked_tokens_against_what_exp_takes(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    log_ratio: float,
    over: int,
) -> None:
    signals = {"loss": [*[0.1] * 7, NAN]}
    one = dump(capture, 8, -1.0 - log_ratio)
    found = measure(TOOL, make_run(captures=[one], vocabulary=words, signals=signals))
    assert found["log_ratio_over_limit"] == pytest.approx(log_ratio / 88.72, abs=1e-6)
    assert (found["log_ratio_over_limit"] >= 1) == bool(over)
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(np.float32(log_ratio))) == bool(over)


def test_a_stand_in_among_the_log_probs_that_were_handed_in(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    one = dump(capture, 8, -INF)
    one = capture(8, **{**one.arrays, "loss_mask": np.ones((2, 3))})
    found = measure(TOOL, make_run(captures=[one], vocabulary=words, signals={"loss": [0.1] * 9}))
    assert (found["nonfinite_captured"], found["first_nonfinite_order"]) == (1, 1)
    assert (found["forward_finite"], found["nonfinite_masked"]) == (True, 0)
