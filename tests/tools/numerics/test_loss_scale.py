"""The loss scale of saved scalers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.run import Checkpoint, Run
from synthetic.torch_files import save_torch

TOOL = "read_loss_scale"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


@pytest.fixture(name="saved")
def _saved(tmp_path: Path) -> Callable[..., Checkpoint]:
    """A checkpoint with a scaler: `saved(20, scale=8.0)`."""

    def build(step: int, scale: float | None, tracker: int = 3, **settings: float) -> Checkpoint:
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        state: dict[str, object] = {"backoff_factor": 0.5, "_growth_tracker": tracker, **settings}
        if scale is not None:
            state["scale"] = scale
        save_torch(folder / "scaler.pt", state)
        return Checkpoint(step=step, path=folder, files=("scaler.pt",), state_step=step)

    return build


def test_a_scale_that_falls_and_falls(
    make_run: MakeRun, measure: Measure, saved: Callable[..., Checkpoint]
) -> None:
    kept = (saved(20, 65536.0), saved(40, 8.0), saved(60, 2.0**-7, tracker=0))
    found = measure(TOOL, make_run(checkpoints=kept))
    assert (found["n_states"], found["scale_first"], found["scale_last"]) == (3, 65536, 2.0**-7)
    assert (found["skipped_least"], found["unskipped_last"]) == (23, 0)  # from 2^16 to 2^-7
    assert (found["last_good_step"], found["first_bad_step"], found["sampled"]) == (40, 60, True)


@pytest.mark.parametrize(
    ("scales", "skipped"),
    [((65536.0, 32768.0), 1), ((1024.0, 2048.0), 0), ((1.0, 1.0), 0), ((65536.0,), 0)],
)
def test_scales_that_hold(
    make_run: MakeRun,
    measure: Measure,
    saved: Callable[..., Checkpoint],
    scales: tuple[float, ...],
    skipped: int,
) -> None:
    kept = tuple(saved(20 * i, scale) for i, scale in enumerate(scales, 1))
    found = measure(TOOL, make_run(checkpoints=kept))
    assert (found["skipped_least"], found["first_bad_step"]) == (skipped, None)


@pytest.mark.parametrize(
    ("last", "skipped"),
    [(0.0, 166), (5e-324, 1090), (2.0**-149, 165)],  # 2^-150 is the first to round to 0
)
def test_a_scale_that_is_used_up(
    make_run: MakeRun,
    measure: Measure,
    saved: Callable[..., Checkpoint],
    last: float,
    skipped: int,
) -> None:
    kept = (saved(20, 65536.0, tracker=20), saved(220, last, tracker=0))
    found = measure(TOOL, make_run(checkpoints=kept))
    assert (found["scale_last"], found["skipped_least"]) == (last, skipped)
    assert (found["fell"], found["first_bad_step"]) == (True, 220)


@pytest.mark.parametrize(("tracker", "fell"), [(20, False), (3, True)])
def test_a_scale_below_one_that_was_set(
    make_run: MakeRun,
    measure: Measure,
    saved: Callable[..., Checkpoint],
    tracker: int,
    fell: bool,
) -> None:
    found = measure(TOOL, make_run(checkpoints=(saved(20, 0.5, tracker=tracker),)))
    assert (found["fell"], found["from_start"]) == (fell, fell)


def test_most_updates_before_a_checkpoint_are_skipped(
    make_run: MakeRun, measure: Measure, saved: Callable[..., Checkpoint]
) -> None:
    kept = (saved(20, 65536.0), saved(40, 65536.0), saved(60, 1.0, tracker=0))  # 2^16 to 2^0
    found = measure(TOOL, make_run(checkpoints=kept))
    assert (found["skipped_in_last"], found["skipped_in_last_share"]) == (16, 0.8)
    assert (found["last_good_step"], found["first_bad_step"], found["sampled"]) == (40, 60, True)


def test_a_fall_and_a_recovery(
    make_run: MakeRun, measure: Measure, saved: Callable[..., Checkpoint]
) -> None:
    kept = (saved(20, 0.25), saved(40, 64.0))
    found = measure(TOOL, make_run(checkpoints=kept))
    assert (found["scale_least"], found["scale_last"], found["from_start"]) == (0.25, 64, True)


def test_another_factor(
    make_run: MakeRun, measure: Measure, saved: Callable[..., Checkpoint]
) -> None:
    kept = (saved(20, 1000.0, backoff_factor=0.1), saved(40, 1.0, backoff_factor=0.1))
    assert measure(TOOL, make_run(checkpoints=kept))["skipped_least"] == 3


def test_without_a_scaler(
    make_run: MakeRun, missing: Callable[..., str], saved: Callable[..., Checkpoint]
) -> None:
    assert "no checkpoint holds a scaler.pt" in missing(TOOL, make_run())
    # One that is not in use is saved without a scale.
    assert "no loss scale" in missing(TOOL, make_run(checkpoints=(saved(20, None),)))
