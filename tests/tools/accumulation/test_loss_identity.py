"""The logged loss against the one that the rollouts give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.readers import open_run
from firstbad.tools.run import Capture, Captures, RolloutBatch, Rollouts, Run
from synthetic.cases_losses import Cispo, Vespo
from synthetic.trainer import Trainer

TOOL = "check_loss_identity"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
Values = dict[str, npt.NDArray[np.float64]]
Steps = npt.NDArray[np.float64]


def test_hand_computed_slope(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Two rows with A = 1 and -1 and n = 10 and 10 + s tokens at step s:
    # -sum(A n)/sum(n) = s/(20 + s). The log holds twice that.
    steps = range(1, 21)
    rows = [
        batch(s, rewards={"correct": [1, 0]}, advantage=[1, -1], n_tokens=[10, 10 + s])
        for s in steps
    ]
    logged = [2 * s / (20 + s) for s in steps]
    config = {"loss_type": "dapo", "gradient_accumulation_steps": 2}
    found = measure(TOOL, make_run(rollouts=rows, signals={"loss": logged}, config=config))
    assert found["n_steps"] == 20
    assert (found["slope"], found["slope_worst"]) == (2, 2)
    assert found["correlation"] == found["correlation_least"] == 1
    assert found["slope_before"] is found["slope_after"] is None
    assert found["slope_deviation"] == 1
    assert (found["factor"], found["factor_is_accumulation"]) == (2, True)
    assert found["kl_coefficient"] is None
    assert found["from_start"]


def test_what_tools_wrote_is_not_in_the_loss(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # As above, and of the second row's tokens a tool wrote 7.
    steps = range(1, 21)
    rows = [
        replace(
            batch(s, rewards={"correct": [1, 0]}, advantage=[1, -1], n_tokens=[10, 17 + s]),
            n_sampled=np.array([10, 10 + s]),
        )
        for s in steps
    ]
    logged = [s / (20 + s) for s in steps]
    config = {"loss_type": "dapo"}
    found = measure(TOOL, make_run(rollouts=rows, signals={"loss": logged}, config=config))
    assert (found["slope"], found["correlation"]) == (1, 1)


@pytest.mark.parametrize("masked", [True, False])
def test_truncated_rows_that_are_masked_are_not_in_the_loss(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, masked: bool
) -> None:
    # Four rows with A = 1, -1, 1, -1; the last is cut at 40 tokens. Without it the loss is
    # -(10 - (10 + s) + 5)/(25 + s) = (s - 5)/(25 + s) at step s, with it (s + 35)/(65 + s).
    steps = range(1, 21)
    rows = [
        batch(
            s,
            rewards={"correct": [1, 0, 1, 0]},
            advantage=[1, -1, 1, -1],
            n_tokens=[10, 10 + s, 5, 40],
        )
        for s in steps
    ]
    logged = [(s - 5) / (25 + s) if masked else (s + 35) / (65 + s) for s in steps]
    config = {"loss_type": "dapo", "mask_truncated_completions": masked}
    signals = {"loss": logged, "truncation_rate": [0.25] * 20}
    found = measure(TOOL, make_run(rollouts=rows, signals=signals, config=config))
    assert (found["slope"], found["correlation"]) == (1, 1)
    assert found["first_bad_step"] is None


def test_padding_in_the_denominator_by_hand(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # As in the first test -sum(A n) = s; two rows of the longest one are 2 (10 + s) places.
    steps = range(1, 21)
    rows = [
        batch(s, rewards={"correct": [1, 0]}, advantage=[1, -1], n_tokens=[10, 10 + s])
        for s in steps
    ]
    logged = [s / (2 * (10 + s)) for s in steps]
    run = make_run(rollouts=rows, signals={"loss": logged}, config={"loss_type": "dapo"})
    found = measure(TOOL, run)
    assert (found["padded_deviation"], found["padded_correlation"]) == (0, 1)
    assert found["padded_error_ratio"] == 0
    assert found["slope_deviation"] > 0.15


def by_padding(values: Values) -> npt.NDArray[np.float64]:
    return values["completion_length_mean"] / values["completion_length_max"]


@pytest.mark.parametrize(
    ("factor", "padded"),
    [
        (by_padding, True),
        (lambda v: by_padding(v).mean(), False),  # as large, and constant
        (lambda v: 0.5, False),
        (lambda v: 2.0, False),
        (lambda v: 1 / by_padding(v), False),
    ],
)
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_a_factor_that_follows_the_padding_is_told_from_a_constant_one(
    simulate: MakeRun,
    measure: Measure,
    factor: Callable[[Values], Any],
    padded: bool,
    beta: float,
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["loss"] = np.where(steps >= ONSET, factor(values) * values["loss"], values["loss"])

    found = measure(TOOL, simulate(1, steps=60, log=log, config={"beta": beta}))
    assert found["slope_deviation"] > 0.15
    assert found["first_bad_step"] == pytest.approx(ONSET, abs=1)
    ratio = found["padded_error_ratio"]
    assert (ratio is not None and ratio < 0.5 and found["padded_deviation"] < 0.1) == padded


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("kind", ["dapo", "bnpo", "dr_grpo"])
def test_a_sound_pipeline_has_slope_one(
    simulate: MakeRun, measure: Measure, kind: str, beta: float
) -> None:
    found = measure(TOOL, simulate(1, steps=30, config={"loss_type": kind, "beta": beta}))
    assert found["slope"] == pytest.approx(1, abs=1e-3)
    assert found["correlation"] > 0.9999
    assert found["slope_deviation"] < 1e-3
    assert found["policy_coefficient"] == pytest.approx(1, abs=1e-3)
    assert found["first_bad_step"] is None
    if beta == 0:
        assert found["kl_coefficient"] is None
    else:
        assert found["kl_coefficient"] == pytest.approx(1, abs=1e-2)


def test_sequence_mean_with_a_kl_term_has_slope_one(simulate: MakeRun, measure: Measure) -> None:
    """Advantages of whole groups sum to 0, so what varies is beta x KL."""
    found = measure(TOOL, simulate(1, steps=30, config={"loss_type": "grpo", "beta": 0.04}))
    assert found["slope"] == pytest.approx(1, abs=1e-3)
    assert found["first_bad_step"] is None


def test_sequence_mean_without_kl_has_nothing_to_compare(
    simulate: MakeRun, missing: Callable[..., str]
) -> None:
    run = simulate(1, steps=30, config={"loss_type": "grpo", "beta": 0.0})
    assert "does not vary" in missing(TOOL, run)


def test_cispo_is_no_token_mean_of_advantages(
    simulate: MakeRun, missing: Callable[..., str]
) -> None:
    said = missing(TOOL, simulate(1, steps=30, config={"loss_type": "cispo", "beta": 0.0}))
    assert "captures of 0 whole steps hold" in said


@pytest.mark.parametrize("kind", [Cispo, Vespo])
def test_losses_of_log_probs_follow_from_captures(
    tmp_path: Path, measure: Measure, kind: type[Trainer]
) -> None:
    run = open_run(str(kind(steps=30, captures=20).run(tmp_path)))
    found = measure(TOOL, run)
    assert (found["n_steps"], found["slope"], found["correlation"]) == (20, 1, 1)
    assert (found["policy_coefficient"], found["kl_coefficient"]) == (1, 1)
    # Taken for a token mean of advantages the same losses do not fit.
    run.config = replace(run.config, values={**run.config.values, "loss_type": "dapo"})
    assert measure(TOOL, run)["slope_deviation"] > 0.5


def test_captures_of_other_rows_are_no_whole_step(
    tmp_path: Path, missing: Callable[..., str]
) -> None:
    class Turned(Cispo):
        def more_tokens(self, batch: Any) -> dict[str, object]:
            return {"advantage": batch.advantage[::-1]}

    run = open_run(str(Turned(steps=30, captures=30).run(tmp_path)))
    assert "captures of 0 whole steps hold" in missing(TOOL, run)


# 4/t sigmoid(t (ratio - 1)) A at ratio 1 is 2A/t, with one temperature t for A above 0 and another
# below, so the loss is not -mean(A).
def test_sapo_is_no_sequence_mean_of_advantages(
    simulate: MakeRun, evidence: Callable[..., Evidence], changed: SimpleNamespace
) -> None:
    run = simulate(1, steps=30, config={"loss_type": "sapo"})
    kl = run.signals.known["kl_ref"].values
    losses = []
    for batch, k in zip(run.rollouts.batches(), kl, strict=True):
        assert batch.advantage is not None
        temperature = np.where(batch.advantage > 0, 1.0, 1.05)
        losses.append(float((-2 * batch.advantage / temperature).mean()) + 0.04 * float(k))
    found = evidence(TOOL, changed.relog(run, loss=losses))
    assert found.metrics is None or found.metrics["slope"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("factor", "named", "accumulation"),
    [(4.0, 4, True), (0.25, 0.25, True), (2.0, 2, False), (1.37, None, None)],
)
def test_a_factor_is_named_and_dated(
    simulate: MakeRun,
    measure: Measure,
    factor: float,
    named: float | None,
    accumulation: bool | None,
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["loss"][steps >= ONSET] *= factor

    config = {"gradient_accumulation_steps": 4}
    found = measure(TOOL, simulate(1, log=log, config=config))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert not found["from_start"]
    assert found["slope_before"] == pytest.approx(1, abs=1e-3)
    assert found["slope_after"] == found["slope_worst"] == pytest.approx(factor, rel=1e-3)
    assert found["factor"] == (None if named is None else pytest.approx(named))
    assert found["factor_is_accumulation"] is accumulation
    assert found["slope_deviation"] == pytest.approx(max(factor, 1 / factor) - 1, rel=0.01)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", ["factor", "sign"])
def test_a_change_in_the_few_steps_whose_completions_are_left(
    simulate: MakeRun, measure: Measure, seed: int, fault: str
) -> None:
    """Completions of every eighth step: seven on one side, eight on the other."""

    def log(values: Values, steps: Steps) -> None:
        kl = 0.04 * values["kl_ref"]
        values["kl_ref"][steps >= 60] *= 5
        policy = np.where(steps < 60, 1, 2 if fault == "factor" else -1) * (values["loss"] - kl)
        both = 2 if fault == "factor" else 1
        values["loss"][:] = policy + 0.04 * values["kl_ref"] * np.where(steps < 60, 1, both)

    def sparse(run: Run) -> Run:
        kept = {b.step: b for b in run.rollouts.batches() if not b.step % 8}
        rollouts = Rollouts(list(kept), lambda steps: map(kept.__getitem__, steps))
        return replace(run, rollouts=rollouts)

    found = measure(TOOL, sparse(simulate(seed, steps=120, log=log)))
    assert found["n_steps"] == 15
    assert 48 <= found["last_good_step"] < 60 <= found["first_bad_step"] <= 72
    assert found["sampled"]
    if fault == "sign":
        assert found["policy_coefficient"] == pytest.approx(-1, abs=0.1)
    else:
        assert found["factor"] == 2
    sound = measure(TOOL, sparse(simulate(seed, steps=120)))
    assert sound["slope"] == pytest.approx(1, abs=0.01)
    assert sound["first_bad_step"] is None


def test_a_factor_from_the_start(simulate: MakeRun, measure: Measure) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["loss"] *= 8

    found = measure(TOOL, simulate(1, log=log))
    assert (found["slope"], found["factor"]) == (pytest.approx(8, rel=1e-3), 8)
    assert found["from_start"]
    assert (found["last_good_step"], found["first_bad_step"]) == (None, 1)


def test_advantages_with_the_wrong_sign(simulate: MakeRun, measure: Measure) -> None:
    def log(values: Values, steps: Steps) -> None:
        kl = 0.04 * values["kl_ref"]
        values["loss"] = -(values["loss"] - kl) + kl

    found = measure(TOOL, simulate(1, log=log))
    assert found["policy_coefficient"] == pytest.approx(-1, abs=1e-3)
    assert found["kl_coefficient"] == pytest.approx(1, abs=0.01)
    assert found["slope_deviation"] == 10
    assert found["joint_correlation"] > 0.999


@pytest.mark.parametrize("coefficient", [0.0, -1.0])
def test_a_kl_term_that_is_missing_or_has_the_wrong_sign(
    simulate: MakeRun, measure: Measure, coefficient: float
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["loss"] += (coefficient - 1) * 2.0 * values["kl_ref"]

    found = measure(TOOL, simulate(1, log=log, config={"beta": 2.0}))
    assert found["kl_coefficient"] == pytest.approx(coefficient, abs=0.01)
    assert found["policy_coefficient"] == pytest.approx(1, abs=1e-3)


def test_coefficients_are_those_of_the_bad_stretch(simulate: MakeRun, measure: Measure) -> None:
    """What is said of a coefficient holds from its first step on, not over the whole run."""

    def log(values: Values, steps: Steps) -> None:
        values["loss"] -= 2 * 2.0 * values["kl_ref"] * (steps >= 21)

    found = measure(TOOL, simulate(1, steps=60, log=log, config={"beta": 2.0}))
    assert found["kl_coefficient"] == pytest.approx(-1, abs=0.01)
    assert found["first_bad_step"] == found["fitted_from_step"] == 21
    assert found["fitted_to_step"] == 60


@pytest.mark.parametrize(
    ("factor", "stretch"), [(4.0, (20, 40)), (-1.0, (31, 45)), (0.5, (12, 30))]
)
def test_a_stretch_that_recovers_is_dated_and_not_diluted(
    simulate: MakeRun, measure: Measure, factor: float, stretch: tuple[int, int]
) -> None:
    def log(values: Values, steps: Steps) -> None:
        inside = (steps >= stretch[0]) & (steps < stretch[1])
        values["loss"] *= np.where(inside, factor, 1.0)

    found = measure(TOOL, simulate(1, log=log, config={"beta": 0.0}))
    assert found["slope_after"] == pytest.approx(factor, rel=0.02)
    assert (found["first_bad_step"], found["recovered_step"]) == stretch
    assert found["last_good_step"] == stretch[0] - 1
    # One that lasts is none that recovers.
    run = simulate(1, log=lambda v, s: v.update(loss=v["loss"] * np.where(s >= 31, 2.0, 1.0)))
    assert measure(TOOL, run)["recovered_step"] is None


@pytest.mark.parametrize("rounding", [0.0, 1e-8, 1e-7])
@pytest.mark.parametrize("seed", range(8))
def test_a_policy_term_that_is_rounding_has_no_coefficient(
    simulate: MakeRun, measure: Measure, seed: int, rounding: float
) -> None:
    """The sequence mean over whole groups is 0: its rounding must not look like a wrong sign."""
    rng = np.random.default_rng(seed)

    def log(values: Values, steps: Steps) -> None:
        values["loss"] += rng.normal(0, 1e-5, len(steps))

    run = simulate(seed, log=log, config={"loss_type": "grpo", "beta": 0.04})
    for batch in run.rollouts.batches():
        assert batch.advantage is not None
        batch.advantage[:] += rng.normal(0, rounding)  # as single precision leaves
    found = measure(TOOL, run)
    assert found["policy_coefficient"] is None
    assert found["first_bad_step"] is None


@pytest.mark.parametrize("seed", range(6))
def test_a_kl_term_that_drowns_in_the_rest_is_not_told(
    simulate: MakeRun, measure: Measure, seed: int
) -> None:
    """What token counts leave over is far above what a small KL could add."""

    def log(values: Values, steps: Steps) -> None:
        noise = np.random.default_rng(seed).normal(0, 1, len(steps))
        values["loss"] += 0.1 * np.std(values["loss"]) * noise

    found = measure(TOOL, simulate(seed, steps=24, log=log, config={"beta": 0.02}))
    assert found["correlation"] > 0.98
    assert found["kl_coefficient"] is None
    assert found["first_bad_step"] is None


def test_a_term_that_shows_late_did_not_begin_with_the_run(
    simulate: MakeRun, measure: Measure
) -> None:
    """KL is 0 at first: few steps say nothing of its sign then, and the onset is an upper bound."""

    def log(values: Values, steps: Steps) -> None:
        values["loss"] -= 2.0 * values["kl_ref"]
        values["kl_ref"] = np.where(steps > 10, 0.05 * (steps - 10), 0.0)
        values["loss"] -= 2.0 * values["kl_ref"]

    found = measure(TOOL, simulate(1, steps=17, log=log, config={"beta": 2.0}))
    assert found["kl_coefficient"] == pytest.approx(-1, abs=0.05)
    assert (found["from_start"], found["last_good_step"]) == (False, None)
    assert found["sampled"]
    assert 11 <= found["first_bad_step"] <= 17


def test_only_the_captured_micro_batch_reaches_the_loss(
    simulate: MakeRun, measure: Measure, sample: Callable[..., Capture]
) -> None:
    whole = simulate(1, config={"beta": 0.0}, dumps=12)
    parts = {
        c.step: replace(c, arrays={name: a[:8] for name, a in c.arrays.items()})
        for c in whole.captures
    }
    run = replace(whole, captures=Captures(list(parts), parts.__getitem__))
    logged = run.signals.known["loss"].values
    for capture in run.captures:
        a, n = capture.numbers("advantage"), capture.mask("completion_mask")
        assert a is not None
        assert n is not None
        logged[capture.step - 1] = -float((a * n.sum(axis=1)).sum() / n.sum())
    found = measure(TOOL, run)
    assert found["capture_correlation"] == pytest.approx(1, abs=1e-3)
    assert found["correlation_least"] < 0.9


def test_a_capture_of_the_whole_step_is_no_micro_batch(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, config={"beta": 0.0}, dumps=12))
    assert found["capture_correlation"] is None


def test_a_single_wild_loss_is_no_change_of_slope(simulate: MakeRun, measure: Measure) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["loss"][steps == ONSET] += 1.0

    found = measure(TOOL, simulate(1, log=log))
    assert found["slope_before"] is None
    assert found["slope"] == pytest.approx(1, abs=0.5)


def test_a_constant_offset_changes_neither_slope_nor_correlation(
    simulate: MakeRun, measure: Measure
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["loss"] += 0.3

    found = measure(TOOL, simulate(1, log=log))
    assert (found["slope"], found["correlation"]) == (pytest.approx(1, abs=1e-3), 1)


def test_a_hidden_entropy_term_is_taken_out_first(simulate: MakeRun, measure: Measure) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["entropy"] *= np.linspace(1, 2, len(steps))
        values["loss"] -= 0.2 * values["entropy"]

    found = measure(TOOL, simulate(1, log=log))
    assert found["entropy_taken_out"]
    assert found["slope"] == pytest.approx(1, abs=0.05)
    assert not measure(TOOL, simulate(1))["entropy_taken_out"]


def test_lengths_are_estimated_from_the_text_where_no_counts_are_written(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace
) -> None:
    run = changed.rebatch(simulate(1), lambda b: replace(b, n_tokens=None))
    found = measure(TOOL, run)
    assert found["token_agreement"] == pytest.approx(1)
    assert found["slope"] == pytest.approx(1, abs=1e-3)


def test_tokens_that_are_trained_count_in_the_denominator(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace
) -> None:
    """Eight prompt tokens a row in the loss are a fault of the masks, and no factor."""
    run = simulate(1, config={"beta": 0.0})
    rows, counts, losses = 32, [], []
    for batch in run.rollouts.batches():
        assert batch.advantage is not None
        assert batch.n_tokens is not None
        n = batch.n_tokens + 8
        counts.append(float(n.sum()))
        losses.append(-float((batch.advantage * n).sum() / n.sum()))
    told = changed.relog(run, loss=losses, trained_tokens_mean=counts)
    found = measure(TOOL, told)
    assert (found["slope"], found["correlation"]) == (pytest.approx(1, abs=1e-3), 1)
    untold = measure(TOOL, changed.relog(told, trained_tokens_mean=None))
    assert untold["slope"] == pytest.approx(12.5 / (12.5 + 8), abs=0.05)
    assert counts[0] > rows * 8


def test_without_data(
    make_run: MakeRun, simulate: MakeRun, missing: Callable[..., str], changed: SimpleNamespace
) -> None:
    assert "no logged loss" in missing(TOOL, make_run())
    run = simulate(1, steps=8)
    assert "8 steps" in missing(TOOL, run)
    assert "are needed" in missing(TOOL, run)
    run = simulate(1, steps=30)
    bare = changed.rebatch(run, lambda b: replace(b, advantage=None))
    assert "advantages" in missing(TOOL, bare)
    run = simulate(1, steps=30, config={"logging_steps": 10})
    loss = run.signals.known["loss"]
    tenth = replace(loss, steps=loss.steps[9::10], values=loss.values[9::10])
    run = changed.relog(run, loss=tenth)
    assert "averaged over 10 steps" in missing(TOOL, run)
    run = changed.relog(simulate(1, steps=30), loss=[0.5] * 30)
    assert "does not vary" in missing(TOOL, run)


@settings(max_examples=4, derandomize=True)
@given(order=st.permutations(range(4)), by=st.integers(0, 1000), factor=st.sampled_from([2, 3, 8]))
def test_order_of_groups_and_step_numbers_do_not_matter(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    order: list[int],
    by: int,
    factor: int,
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["loss"][steps >= 21] *= factor

    run = simulate(2, steps=40, log=log)
    before = measure(TOOL, run)
    moved = changed.rebatch(run, lambda b: changed.reorder_groups(b, order))
    after = measure(TOOL, changed.shift_steps(moved, by))
    assert after == pytest.approx(changed.dates_moved(before, by), abs=2e-4)
    assert (before["first_bad_step"], before["factor"]) == (21, factor)


def test_a_logged_kl_of_unstated_weight_is_not_taken_for_none(
    simulate: MakeRun, missing: Callable[..., str]
) -> None:
    run = simulate(1, steps=30, config={"beta": 0.04})
    values = {k: v for k, v in run.config.values.items() if k != "beta"}
    assert "`beta`" in missing(TOOL, replace(run, config=replace(run.config, values=values)))


def one_far_out(draft: Any) -> None:
    """At step 12 one right answer is 200,000 characters long."""
    if draft.step == 12:
        at = int(np.flatnonzero(draft.right)[0])
        draft.completions[at] = "so " * 66_000 + draft.completions[at]
        draft.n_tokens[at] += 66_000


@pytest.mark.parametrize("share", [0.5, 0.25, 1 / 3])
def test_a_slope_that_one_step_carries_is_no_factor(
    simulate: MakeRun, measure: Measure, share: float
) -> None:
    def log(values: Values, steps: Steps) -> None:  # the trainer saw less of that answer
        values["loss"][steps == 12] *= share

    found = measure(TOOL, simulate(1, steps=31, log=log, edit=one_far_out))
    assert found["carried_by"] == 12
    assert found["n_steps"] == 30
    assert found["slope_worst"] == pytest.approx(1, abs=0.01)
    assert (found["factor"], found["first_bad_step"]) == (None, None)


@pytest.mark.parametrize("factor", [1.0, 4.0, 0.5])
def test_a_step_far_out_that_the_others_bear_out_is_kept(
    simulate: MakeRun, measure: Measure, factor: float
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["loss"] *= factor

    found = measure(TOOL, simulate(1, steps=31, log=log, edit=one_far_out))
    assert (found["carried_by"], found["n_steps"]) == (None, 31)
    assert found["slope"] == pytest.approx(factor, rel=1e-2)
    assert found["factor"] == (None if factor == 1 else pytest.approx(factor))


def test_a_factor_shows_behind_a_step_far_out_that_lacks_it(
    simulate: MakeRun, measure: Measure
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["loss"][steps != 12] *= 4

    found = measure(TOOL, simulate(1, steps=31, log=log, edit=one_far_out))
    assert (found["carried_by"], found["factor"], found["from_start"]) == (12, 4, True)
