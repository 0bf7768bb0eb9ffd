"""The numeric trail: what is the first tensor that is not finite?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.flight import Flight, FlightStep, Microbatch, NonFinite, Trail
from firstbad.tools.registry import run_tool
from firstbad.tools.run import RolloutBatch, Run
from synthetic.recorded import sound_step, trail

TOOL = "read_trail"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def run_of(make_run: MakeRun, steps: Sequence[FlightStep], **fields: Any) -> Run:
    kept = {flown.step: flown for flown in steps}
    return make_run(flight=Flight(list(kept), kept.__getitem__), **fields)


def broken(step: int, **places: int) -> FlightStep:
    return replace(sound_step(step), trail=trail(**places))


def test_a_sound_trail(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, run_of(make_run, [sound_step(s) for s in (1, 2, 3)]))
    assert (found["n_steps"], found["n_tensors"], found["n_failing"]) == (3, 24, 0)
    assert found["first_place"] is None
    assert found["first_bad_step"] is None
    assert found["largest_log_ratio"] == 3.0
    assert found["log_ratio_over_limit"] == pytest.approx(3 / 88.72, abs=1e-6)


@pytest.mark.parametrize(
    ("places", "first"),
    [
        ({"logits": 5, "log_softmax": 9, "loss": 1}, 0),
        ({"exp": 1, "kl": 2, "loss": 1, "grad": 4}, 4),
        ({"kl": 2, "loss": 1, "grad": 4}, 6),
        ({"grad": 4}, 8),
    ],
)
def test_the_first_in_the_order_of_computation(
    make_run: MakeRun, measure: Measure, places: dict[str, int], first: int
) -> None:
    steps = [sound_step(1), sound_step(2), broken(3, **places), broken(4, logits=1, loss=1)]
    found = measure(TOOL, run_of(make_run, steps))
    assert found["first_place"] == first
    assert (found["n_failing"], found["last_good_step"], found["first_bad_step"]) == (2, 2, 3)
    assert not found["sampled"]


def test_what_sound_steps_hold_too_is_not_the_cause(make_run: MakeRun, measure: Measure) -> None:
    """Logits of excluded tokens are -Inf by design; exp breaks at step 3."""
    steps = [broken(1, logits=50), broken(2, logits=50), broken(3, logits=50, exp=1, loss=1)]
    found = measure(TOOL, run_of(make_run, steps))
    assert (found["first_place"], found["first_bad_step"]) == (4, 3)
    assert found["n_harmless"] == 2


def test_steps_between_captures_leave_a_bracket(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, run_of(make_run, [sound_step(10), broken(20, loss=1)]))
    assert (found["last_good_step"], found["first_bad_step"], found["sampled"]) == (10, 20, True)
    found = measure(TOOL, run_of(make_run, [broken(1, loss=1)]))
    assert found["from_start"]


def test_figures_that_the_logger_filters(make_run: MakeRun, measure: Measure) -> None:
    steps = [sound_step(1), broken(2, loss=1, grad=1), broken(3, loss=1, grad=1)]
    seen = {"loss": [0.1, 0.1, np.nan], "grad_norm_preclip": [1.0, 1.0, 1.0]}
    found = measure(TOOL, run_of(make_run, steps, signals=seen))
    assert found["hidden_steps"] == 1, "step 3 logs its NaN"


# ----- recipe 5: fp32 log-ratios 5, 20, 60, 88, 89, 100, and one NaN in a masked slot


def k3_trail(log_ratio: Sequence[float], mask: Sequence[int], *, select: bool) -> tuple[Trail, ...]:
    """k3 of these log-ratios in float32 and its masked mean, by product or by selection."""
    d, m = np.array(log_ratio, np.float32), np.array(mask, np.float32)
    with np.errstate(all="ignore"):
        exp = np.exp(d)
        kl = exp - d - np.float32(1)
        kept = np.where(m > 0, kl, np.float32(0)) if select else kl * m
        # Backward: of a product m * (exp - 1); of a selection 0 where it is not taken.
        slope = np.where(m > 0, exp - 1, 0) if select else (exp - 1) * m
    mean = kept.sum() / m.sum()

    def seen(place: str, values: Any) -> Trail:
        values = np.atleast_1d(values)
        bad = ~np.isfinite(values)
        out = int((bad & (m == 0)).sum()) if values.shape == m.shape else 0
        largest = float(np.abs(values[~bad]).max(initial=0))
        return Trail(place, place, "float32", values.size, int(bad.sum()), out, largest)

    return (
        seen("log_ratio", d), seen("exp", exp), seen("kl", kl), seen("loss", mean),
        seen("grad", np.append(slope, 0.0)),
    )  # fmt: skip


def test_k3_is_finite_up_to_88_and_not_from_89(make_run: MakeRun, measure: Measure) -> None:
    for last, fails in ((88.0, 0), (89.0, 1), (100.0, 1)):
        step = FlightStep(1, trail=k3_trail([5, 20, 60, last], [1, 1, 1, 1], select=True))
        found = measure(TOOL, run_of(make_run, [step]))
        assert found["n_failing"] == fails, last
        assert (found["log_ratio_over_limit"] > 1) == bool(fails)
        assert found["first_place"] == (4 if fails else None)


def test_overflow_behind_a_mask_and_its_twin(
    make_run: MakeRun, measure: Measure, evidence: Callable[..., Evidence]
) -> None:
    ratios, mask = [5, 20, 60, 88, 89, 100], [1, 1, 1, 1, 0, 0]
    by_product = run_of(make_run, [FlightStep(1, trail=k3_trail(ratios, mask, select=False))])
    found = measure(TOOL, by_product)
    assert (found["n_failing"], found["first_place"], found["first_masked_share"]) == (1, 4, 1.0)
    shown = evidence(TOOL, by_product).tables[0]
    assert [row[:2] for row in shown.rows][1] == ("exp", "exp")
    twin = run_of(make_run, [FlightStep(1, trail=k3_trail(ratios, mask, select=True))])
    found = measure(TOOL, twin)
    assert (found["n_failing"], found["n_harmless"]) == (0, 1)


def test_one_nan_in_a_masked_slot_and_its_twin(make_run: MakeRun, measure: Measure) -> None:
    ratios, mask = [0.1, 0.2, float("nan")], [1, 1, 0]
    step = FlightStep(1, trail=k3_trail(ratios, mask, select=False))
    found = measure(TOOL, run_of(make_run, [step]))
    assert (found["first_place"], found["first_masked_share"]) == (3, 1.0)
    twin = FlightStep(1, trail=k3_trail(ratios, mask, select=True))
    assert measure(TOOL, run_of(make_run, [twin]))["n_failing"] == 0


def test_without_a_trail(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "no recorded trail" in missing(TOOL, make_run(signals={"loss": [0.0] * 3}))


def test_a_trail_behind_a_log_that_broke_earlier_names_no_place(
    make_run: MakeRun, measure: Measure
) -> None:
    """The loss is NaN at step 5, between the captures: at 10 the weights are, and logits first."""
    steps = [sound_step(1), broken(10, logits=9, loss=1)]
    logged = [0.1] * 4 + [np.nan] * 6
    found = measure(TOOL, run_of(make_run, steps, signals={"loss": logged}))
    assert (found["first_place"], found["first_bad_step"]) == (None, 10)
    found = measure(TOOL, run_of(make_run, steps, signals={"loss": [0.1] * 9 + [np.nan]}))
    assert found["first_place"] == 0
    # What is logged as NaN where the trail is sound was not computed: it came not before.
    logged = [np.nan] + [0.1] * 9
    assert measure(TOOL, run_of(make_run, steps, signals={"loss": logged}))["first_place"] == 0
    # With fp16 the loss scaler skips a step whose gradient alone overflows.
    norms = {"grad_norm_preclip": [0.1] * 4 + [np.nan] + [0.1] * 4 + [np.nan]}
    assert measure(TOOL, run_of(make_run, steps, signals=norms))["first_place"] is None
    found = measure(TOOL, run_of(make_run, steps, signals=norms, config={"fp16": True}))
    assert found["first_place"] == 0


def test_denominators_of_the_step_that_breaks(make_run: MakeRun, measure: Measure) -> None:
    def with_ledger(*denominators: float) -> dict[str, Any]:
        ledger = tuple(Microbatch(denominator=d, n_tokens=int(d)) for d in denominators)
        flown = replace(broken(2, loss=1), microbatches=ledger)
        return measure(TOOL, run_of(make_run, [sound_step(1), flown]))

    assert with_ledger(40.0, 0.0)["zero_denominators"] == 1
    assert with_ledger(40.0, 38.0)["zero_denominators"] == 0
    assert with_ledger()["zero_denominators"] is None


def test_float16_is_told(make_run: MakeRun, measure: Measure) -> None:
    for dtype, half in (("torch.float16", True), ("bfloat16", False), ("float32", False)):
        places = tuple(
            replace(t, dtype=dtype) if t.place == "loss" else t for t in trail(loss=1, grad=1)
        )
        flown = replace(sound_step(2), trail=places)
        found = measure(TOOL, run_of(make_run, [sound_step(1), flown]))
        assert found["first_in_half"] is half


def test_a_resume_and_the_rate_of_the_step_that_breaks(make_run: MakeRun, measure: Measure) -> None:
    steps = [sound_step(1), sound_step(2), broken(3, grad=1)]
    for at, resumed in ((2, False), (3, True), (4, False)):
        events = (("resume", at, "resumed"),)
        found = measure(TOOL, run_of(make_run, steps, events=events))
        assert found["resumed"] is resumed
    for rates, bad in (([1e-6, 1e-6, np.nan], True), ([np.nan, 1e-6, 1e-6], False)):
        found = measure(TOOL, run_of(make_run, steps, signals={"learning_rate": rates}))
        assert found["rate_nonfinite"] is bad


@pytest.mark.parametrize(
    ("scores", "advantages", "n", "flat", "badly"),
    [
        ([1, 1, 0, 1], [np.nan, np.nan, -1, 1], 1, 1.0, 0.0),
        ([1, np.nan, 0, 1], [np.nan, np.nan, -1, 1], 1, 0.0, 1.0),
        ([1, 0, 0, 1], [np.inf, -np.inf, -1, 1], 1, 0.0, 0.0),
        ([1, 1, 0, 1], [0, 0, -1, 1], 0, None, None),
        ([1, 1, 0, 1], [np.nan] * 4, 0, None, None),  # not written at all
    ],
)
def test_groups_whose_advantages_are_not_finite(
    make_run: MakeRun,
    measure: Measure,
    batch: Callable[..., RolloutBatch],
    scores: list[float],
    advantages: list[float],
    n: int,
    flat: float | None,
    badly: float | None,
) -> None:
    rows = batch(
        2,
        rewards={"right": scores},
        size=2,
        total=np.array(scores, float),
        advantage=np.array(advantages, float),
    )
    run = run_of(make_run, [sound_step(1), broken(2, loss=1)], rollouts=[rows])
    found = measure(TOOL, run)
    assert found["spoiled_groups"] == n
    assert (found["spoiled_flat_share"], found["spoiled_score_share"]) == (flat, badly)


def test_the_operation_of_a_watched_pass_is_quoted(make_run: MakeRun) -> None:
    first = NonFinite("exp", "forward", "", "loss.py:125", "float16", 12.57)
    steps = [sound_step(1), sound_step(2), replace(broken(3, grad=4), first_nonfinite=first)]
    found = run_tool(TOOL, run_of(make_run, steps), {}, evidence_id="E1")
    assert found.quote == (
        "Watched, the first operation whose result is not finite is `exp` of values up to 12.57 "
        "in float16, in the forward pass (loss.py:125)."
    )
    plain = run_tool(TOOL, run_of(make_run, [*steps[:2], broken(3, grad=4)]), {}, evidence_id="E1")
    assert plain.quote == ""
