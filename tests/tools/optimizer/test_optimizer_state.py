"""Steps that a saved optimizer has counted, against its schedule and its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Checkpoint, Run
from synthetic.torch_files import adam_state, save_torch, schedule_state

TOOL = "check_optimizer_state"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


@pytest.fixture(name="saved")
def _saved(tmp_path: Path) -> Callable[..., Checkpoint]:
    """A checkpoint folder: `saved(120, counted=60, planned=120)`."""

    def build(
        step: int,
        counted: float | None,
        planned: int | None,
        *,
        own: int | None = None,
        rate: float = 1e-4,
    ) -> Checkpoint:
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if counted is not None:
            pair = (np.ones(3, np.float32), np.ones(3, np.float32))
            state = adam_state(pair, pair, step=counted, rate=rate)
            save_torch(folder / "optimizer.pt", state)
        if planned is not None:
            save_torch(folder / "scheduler.pt", schedule_state(planned))
        names = tuple(sorted(p.name for p in folder.iterdir()))
        return Checkpoint(step=step, path=folder, files=names, state_step=own or step)

    return build


def test_a_state_that_was_dropped_at_the_resume(
    make_run: MakeRun, measure: Measure, saved: Callable[..., Checkpoint]
) -> None:
    # At checkpoint 120 Adam has counted 60: it began anew after step 60.
    run = make_run(
        signals={"loss": [0.1] * 120},
        events=[("resume", 61, "resumed")],
        checkpoints=(saved(60, 60, 60), saved(120, 60, 120)),
    )
    found = measure(TOOL, run)
    assert (found["n_states"], found["behind_steps"], found["behind_share"]) == (2, 60, 0.5)
    assert found["state_dropped"]
    assert (found["last_good_step"], found["first_bad_step"]) == (60, 61)


@pytest.mark.parametrize(
    ("counted", "planned"),
    [(120, 120), (117, 120), (120, 480), (120, None)],
    ids=["equal", "steps that a loss scaler skipped", "a schedule per process", "no schedule"],
)
def test_states_that_belong_to_their_checkpoints(
    make_run: MakeRun,
    measure: Measure,
    saved: Callable[..., Checkpoint],
    counted: int,
    planned: int | None,
) -> None:
    run = make_run(
        signals={"loss": [0.1] * 120},
        events=[("resume", 61, "resumed")],
        checkpoints=(saved(120, counted, planned),),
    )
    found = measure(TOOL, run)
    assert found["settled"]
    assert not found["state_dropped"]
    assert found["first_bad_step"] is None


@pytest.mark.parametrize(
    ("resumes", "states", "settled"),
    [([], [], True), ([61], [], False), ([61], [60], False), ([61], [120], True)],
)
def test_a_resume_is_settled_by_a_state_saved_after_it(
    make_run: MakeRun,
    measure: Measure,
    saved: Callable[..., Checkpoint],
    resumes: list[int],
    states: list[int],
    settled: bool,
) -> None:
    run = make_run(
        signals={"loss": [0.1] * 120},
        events=[("resume", step, "resumed") for step in resumes],
        checkpoints=tuple(saved(s, s, s) for s in states),
    )
    assert measure(TOOL, run)["settled"] is settled


def test_optimizer_and_schedule_that_both_began_anew(
    make_run: MakeRun, measure: Measure, saved: Callable[..., Checkpoint]
) -> None:
    # Neither file came back at the resume: both count 60 in checkpoint 120.
    run = make_run(
        signals={"loss": [0.1] * 120},
        events=[("resume", 61, "resumed")],
        checkpoints=(saved(120, 60, 60),),
    )
    found = measure(TOOL, run)
    assert (found["both_behind_steps"], found["both_dropped"]) == (60, True)
    assert (found["last_good_step"], found["first_bad_step"]) == (60, 61)
    assert not found["state_dropped"]


def test_a_trainer_that_updates_every_other_step_lost_nothing(
    make_run: MakeRun, measure: Measure, saved: Callable[..., Checkpoint]
) -> None:
    run = make_run(
        signals={"loss": [0.1] * 120}, checkpoints=(saved(60, 30, 30), saved(120, 60, 60))
    )
    assert not measure(TOOL, run)["both_dropped"]


def test_an_optimizer_of_a_later_step_than_the_model(
    make_run: MakeRun, measure: Measure, saved: Callable[..., Checkpoint]
) -> None:
    # At the resume behind step 40 the state of step 60 was loaded: 80 updates at step 60.
    run = make_run(
        signals={"loss": [0.1] * 60},
        events=[("resume", 41, "resumed")],
        checkpoints=(saved(20, 20, 20), saved(40, 40, 40), saved(60, 80, 60)),
    )
    found = measure(TOOL, run)
    assert (found["ahead_steps"], found["state_ahead"]) == (20, True)
    assert (found["last_good_step"], found["first_bad_step"]) == (40, 41)
    assert not found["sampled"]


@pytest.mark.parametrize(
    "counts",
    [((20, 520), (40, 540)), ((20, 80), (40, 160)), ((60, 240),)],
    ids=["carried over from another run", "four updates in each step", "the same, once"],
)
def test_more_updates_than_steps_by_design(
    make_run: MakeRun,
    measure: Measure,
    saved: Callable[..., Checkpoint],
    counts: tuple[tuple[int, int], ...],
) -> None:
    run = make_run(
        signals={"loss": [0.1] * 60},
        checkpoints=tuple(saved(step, counted, step) for step, counted in counts),
    )
    found = measure(TOOL, run)
    assert not found["state_ahead"]
    assert found["first_bad_step"] is None


def test_a_schedule_that_began_anew(
    make_run: MakeRun, measure: Measure, saved: Callable[..., Checkpoint]
) -> None:
    run = make_run(
        signals={"loss": [0.1] * 120},
        events=[("resume", 61, "resumed")],
        checkpoints=(saved(60, 60, 60), saved(120, 120, 60)),
    )
    found = measure(TOOL, run)
    assert (found["schedule_behind_steps"], found["schedule_dropped"]) == (60, True)
    assert (found["last_good_step"], found["first_bad_step"]) == (60, 61)


@pytest.mark.parametrize(
    ("logged", "factor", "first"),
    [([1e-4] * 61, 1.0, None), ([1e-4] * 60 + [1e-3], 1.0, None), ([1e-5] * 61, 10.0, 61)],
    ids=["equal", "a log one step late, that jumps", "another unit than the optimizer's"],
)
def test_the_stored_rate_against_the_logged_one(
    make_run: MakeRun,
    measure: Measure,
    saved: Callable[..., Checkpoint],
    logged: list[float],
    factor: float,
    first: int | None,
) -> None:
    run = make_run(signals={"learning_rate": logged}, checkpoints=(saved(60, 60, 60),))
    found = measure(TOOL, run)
    assert found["rate_off_factor"] == pytest.approx(factor)
    assert found["first_bad_step"] == first


def test_which_checkpoints_fit_together(
    make_run: MakeRun, evidence: Callable[..., Evidence], saved: Callable[..., Checkpoint]
) -> None:
    run = make_run(
        signals={"loss": [0.1] * 120},
        checkpoints=(saved(20, 20, 20), saved(40, 40, 40, own=60), saved(120, 60, 120)),
    )
    (table,) = evidence(TOOL, run).tables
    assert table.rows == (
        (20, 20, 20, 20, True),
        (40, 60, 40, 40, False),
        (120, 120, 60, 120, False),
    )


def test_a_file_that_cannot_be_read_is_told_in_one_line(
    make_run: MakeRun, evidence: Callable[..., Evidence], saved: Callable[..., Checkpoint]
) -> None:
    checkpoint = saved(60, 60, 60)
    (checkpoint.path / "optimizer.pt").write_bytes(b"PK junk")
    found = evidence(TOOL, make_run(signals={"loss": [0.1] * 60}, checkpoints=(checkpoint,)))
    assert found.metrics is not None
    assert (found.metrics["n_states"], found.metrics["n_unread"]) == (0, 1)
    assert "1 file not read: `checkpoint-60/optimizer.pt`: it is no zip" in found.summary


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "checkpoints" in missing(TOOL, make_run())


@pytest.mark.parametrize(
    ("scale", "dropped"),
    [
        (2.0**4, False),  # halved twelve times: these updates were skipped
        (2.0**15, True),  # halved once
        (None, True),
    ],
)
def test_updates_that_a_loss_scaler_skipped_are_not_lost(
    make_run: MakeRun,
    measure: Measure,
    saved: Callable[..., Checkpoint],
    scale: float | None,
    dropped: bool,
) -> None:
    """Neither optimizer nor schedule count 12 of the 60 steps, after a good checkpoint."""
    late = saved(60, 48, 48)
    if scale is not None:
        save_torch(late.path / "scaler.pt", {"scale": scale, "backoff_factor": 0.5})
        late = replace(late, files=(*late.files, "scaler.pt"))
    run = make_run(signals={"loss": [0.1] * 60}, checkpoints=(saved(20, 20, 20), late))
    assert measure(TOOL, run)["both_dropped"] is dropped
