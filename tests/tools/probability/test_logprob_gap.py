"""The A/B/C test: what it counts, against which floor, and when it says that something began."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Capture, Run

TOOL = "compare_logprobs"
MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]
ONE_UPDATE = {"updates_per_batch": 1}


def dump(make: MakeCapture, step: int, delta: Any, **arrays: Any) -> Capture:
    """Log-probs of -1 in the trainer, and of -1 - delta in the engine."""
    gap = np.asarray(delta, float)
    made = {
        "token_id": np.full(gap.shape, 5),
        "source": np.full(gap.shape, 3),
        "logp_old": np.full(gap.shape, -1.0),
        "logp_engine": -1.0 - gap,
    }
    return make(step, **{**made, **arrays})


def test_figures_by_hand(
    capture: MakeCapture, make_run: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    run = make_run(captures=[dump(capture, 1, [[0.0, 0.1], [-0.3, 0.4]])])
    found = evidence(TOOL, run)
    m = found.metrics
    assert m is not None
    assert (m["n_tokens"], m["mean"], m["largest"]) == (4, 0.2, 0.4)
    assert m["bias"] == 0.05
    # exp(0.4) is above 1.2, exp(-0.3) below 0.8, the others inside.
    assert m["past_clip"] == 0.5
    assert m["floor_mean"] is None
    worst = next(t for t in found.tables if t.title == "tokens that differ most")
    assert worst.rows[0] == (1, 1, 1, "5", -1.0, -1.4)


def test_the_clip_is_that_of_the_settings(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    captures = [dump(capture, 1, [[0.4, -0.3]])]
    config = {"epsilon": 0.3, "epsilon_high": 0.5}
    assert measure(TOOL, make_run(captures=captures, config=config))["past_clip"] == 0.0


SLEEP = [0.010, 0.018, 0.201]
"""Mean difference by step with the engine's sleep mode on (trl#5312); 0.015 in the end without."""


@pytest.mark.parametrize(("last", "first_bad"), [(0.201, 3), (0.015, None)])
def test_the_sleep_mode_series_is_dated(
    last: float, first_bad: int | None, capture: MakeCapture, make_run: MakeRun,
    measure: Measure,
) -> None:  # fmt: skip
    levels = [*SLEEP[:2], last]
    captures = [dump(capture, step, np.full((4, 8), level)) for step, level in enumerate(levels, 1)]
    m = measure(TOOL, make_run(captures=captures))
    assert m["first_bad_step"] == first_bad
    assert m["baseline"] == 0.010
    assert m["over_baseline"] == (20.1 if first_bad else pytest.approx(1.433, abs=0.001))


def test_a_difference_from_the_first_capture_on_is_from_the_start(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    captures = [dump(capture, step, np.full((4, 8), 0.3)) for step in (1, 20, 40)]
    m = measure(TOOL, make_run(captures=captures))
    assert (m["from_start"], m["first_bad_step"], m["last_good_step"]) == (True, 1, None)


def test_the_trainers_own_floor_is_taken_off(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    noise = np.random.default_rng(1).normal(0, 0.15, (40, 50))
    layout = -1.0 + np.random.default_rng(2).normal(0, 0.15, (40, 50))
    bare = measure(TOOL, make_run(captures=[dump(capture, 1, noise)]))
    told = measure(TOOL, make_run(captures=[dump(capture, 1, noise, logp_layout=layout)]))
    assert bare["past_clip"] == told["past_clip"] > 0.1
    assert bare["past_clip_beyond_floor"] == bare["past_clip"]
    assert told["past_clip_beyond_floor"] < 0.02
    assert told["over_floor"] == pytest.approx(1.0, abs=0.2)
    assert bare["first_bad_step"] == 1
    assert told["first_bad_step"] is None


def test_rows_of_older_weights_are_left_out(
    sample: Callable[..., Capture],
    sides: Callable[..., Capture],
    recorded: Callable[..., Run],
    simulate: Callable[..., Run],
    measure: Measure,
    missing: Callable[..., str],
) -> None:
    run = simulate(3, steps=12, dumps=3)
    assert measure(TOOL, recorded(run))["n_captures"] == 3

    def as_many_rows(capture: Capture) -> Capture:
        made = sides(sample(capture.step, rows=32))
        assert made.numbers("logp_engine") is not None
        return made

    assert "no captures" in missing(TOOL, recorded(run, as_many_rows, lag=2))


def test_a_pass_after_an_update_is_no_new_pass(
    capture: MakeCapture, make_run: MakeRun, measure: Measure, missing: Callable[..., str]
) -> None:
    captures = [dump(capture, 1, [[0.1, 0.2]], logp_new=[[-1.5, -1.5]])]
    run = make_run(captures=captures, config=ONE_UPDATE)
    assert measure(TOOL, run, left="new", right="old")["mean"] == 0.5
    unknown = make_run(captures=captures)
    assert "no captures" in missing(TOOL, unknown, left="new", right="old")


def test_a_pass_that_is_repeated_has_no_floor(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    noise = np.random.default_rng(3).normal(0, 0.05, (4, 20))
    dumped = dump(
        capture, 1, np.zeros((4, 20)), logp_recheck=-1.0 + noise, logp_layout=-1.0 - noise
    )
    m = measure(TOOL, make_run(captures=[dumped]), left="old", right="recheck")
    assert m["from_start"]


def test_where_the_difference_lies(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    rng = np.random.default_rng(4)
    delta = np.full((40, 20), 0.01)
    delta[:, 0] = 0.5
    ids = rng.integers(5, 9, (40, 20))
    pads = rng.integers(0, 6, 40)
    prompt = np.arange(8) >= pads[:, None]
    border = dump(capture, 1, delta, token_id=ids)
    m = measure(TOOL, make_run(captures=[border]))
    assert m["first_token_excess"] == 50.0
    assert m["first_token_share"] == pytest.approx(0.5 / (0.5 + 0.19), abs=1e-3)
    padded = dump(capture, 1, np.broadcast_to(0.05 * pads[:, None], (40, 20)), prompt_mask=prompt)
    m = measure(TOOL, make_run(captures=[padded]))
    assert m["padding_correlation"] == 1.0
    assert (m["least_padded"], m["most_padded"]) == (0.0, 0.25)
    assert m["padding_excess"] == 250.0
    ids[::4, 3] = 99
    rare = dump(capture, 1, np.where(ids == 99, 0.4, 0.01), token_id=ids)
    assert measure(TOOL, make_run(captures=[rare]))["rare_excess"] == 40.0


def test_the_offset_of_positions_counts_as_padding(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    offset = np.arange(10) % 5
    dumped = dump(
        capture,
        1,
        np.broadcast_to(0.1 * offset[:, None], (10, 6)),
        prompt_mask=np.ones((10, 3)),
        position=3 + offset[:, None] + np.arange(6),
    )
    assert measure(TOOL, make_run(captures=[dumped]))["padding_correlation"] == 1.0


def test_growth_is_told_from_a_level(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    def growth(levels: list[float]) -> Any:
        captures = [dump(capture, i, np.full((4, 8), x)) for i, x in enumerate(levels, 1)]
        return measure(TOOL, make_run(captures=captures))

    quiet = [0.001] * 4
    grows, level = growth([*quiet, 0.1, 0.2, 0.3, 0.4]), growth([*quiet, 0.2, 0.21, 0.2, 0.19])
    assert (grows["growth"], grows["gradual"]) == (pytest.approx(0.35 / 0.15), True)
    assert (level["growth"], level["gradual"]) == (pytest.approx(0.195 / 0.205, abs=1e-4), False)
    assert grows["first_bad_step"] == level["first_bad_step"] == 5
    assert growth(quiet)["growth"] is None

    assert growth(quiet)["growth"] is None
    # 0.0025 is within three times the baseline, 0.004 is not; nor is what a tenth of 0.02 exceeds.
    came_back = growth([*quiet, 0.1, 0.0025, 0.2, 0.001, 0.3])
    assert (came_back["n_back"], came_back["first_bad_step"]) == (2, 5)
    assert growth([*quiet, 0.1, 0.004, 0.2])["n_back"] == level["n_back"] == 0
    assert growth([*quiet, 0.02, 0.0025, 0.02])["n_back"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_order_of_rows_and_padding_change_nothing(
    seed: int, make_run: MakeRun, sample: Callable[..., Capture], sides: Callable[..., Capture],
    evidence: Callable[..., Evidence],
) -> None:  # fmt: skip
    dumped = sides(sample(1, seed=seed), noise=0.05)
    order = np.random.default_rng(seed).permutation(64)
    moved = replace(dumped, arrays={n: a[order] for n, a in dumped.arrays.items()})
    wide = replace(
        dumped,
        arrays={
            n: a if n.startswith(("prompt", "engine_t", "adv")) else np.pad(a, ((0, 0), (0, 3)))
            for n, a in dumped.arrays.items()
        },
    )
    found = [evidence(TOOL, make_run(captures=[c])).metrics for c in (dumped, moved, wide)]
    assert found[0] is not None
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-5)


def test_nothing_to_compare(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert missing(TOOL, make_run()) == (
        "no captures of fresh rollouts that hold log-probs of the trainer and the engine"
    )


@pytest.mark.parametrize("size", [0.01, 1.3, 7.0])
def test_what_rounding_in_storage_explains(
    capture: MakeCapture, make_run: MakeRun, measure: Measure, size: float
) -> None:
    values = -size * np.linspace(1, 2, 301)[None]
    bits = values.astype(np.float32).view(np.uint32) + np.uint32(0x8000)
    rounded = (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(float)
    for old, share in ((rounded, 0.0), (values * 1.02, 1.0)):
        made = capture(
            1,
            token_id=np.full(values.shape, 5),
            source=np.full(values.shape, 3),
            logp_old=old,
            logp_recheck=values,
        )
        run = make_run(captures=[made])
        found = measure(TOOL, run, left="old", right="recheck")
        assert found["beyond_rounding"] == pytest.approx(share)
