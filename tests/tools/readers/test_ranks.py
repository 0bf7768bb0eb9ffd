"""Records of several ranks, and steps that are still in the ring, read as one record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools.errors import UserError
from firstbad.tools.readers import open_run
from firstbad.tools.run import Run
from firstbad_recorder import Recorder


def tokens_of(rank: int) -> dict[str, object]:
    """Two rows: longer ones on rank 1, where the tokens of a row have advantages of their own."""
    n = 2 + rank
    width = 2 + n
    one_each = [[None, None, *[0.5 + i for i in range(n)]]] * 2
    return {
        "token_id": [[10 * rank + i for i in range(width)]] * 2,
        "source": [[2, 2, *[3] * n]] * 2,
        "loss_mask": [[0, 0, *[1] * n]] * 2,
        "logp_new": [[None, None, *[-1.0 - rank] * n]] * 2,
        "advantage": one_each if rank else [0.25, -0.25],
    }


def numerics(n_nonfinite: int) -> dict[str, object]:
    """All ranks have logits of -Inf: tokens that are excluded."""
    return {
        "trail": [
            {"name": "logits", "place": "logits", "n": 4, "n_nonfinite": 1},
            {"name": "exp", "place": "exp", "n": 4, "n_nonfinite": n_nonfinite},
        ],
        "norms": [{"before_clip": 1.0 + n_nonfinite}],
    }


def hold(recorder: Recorder, rank: int, step: int, **more: Any) -> None:
    names = [f"{step}-{rank}-{i}" for i in range(2)]
    recorder.hold(
        step,
        rollouts=[{"sample": n, "group": f"g{rank}", "completion": n, "reward": 1} for n in names],
        tokens=tokens_of(rank),
        microbatches=[{"samples": names, "n_tokens": 4}],
        numerics=numerics(3 if rank and step == 3 else 0),
        whole_groups=True,
        stages={"generated": names},
        **more,
    )


def train(folder: Path, ranks: int = 2) -> Path:
    """Rank 1 sees a loss that is not finite at step 3."""
    around = {"WORLD_SIZE": str(ranks)}
    recorders = [
        Recorder(folder, rank=rank, baseline_every=0, process_ends=False, environment=around)
        for rank in range(ranks)
    ]
    for step in range(1, 6):
        for rank, recorder in enumerate(recorders):
            hold(recorder, rank, step)
            broken = rank == 1 and step == 3
            recorder.scalars(step, loss=float("nan") if broken else 0.1 + rank, reward=0.5)
    for recorder in recorders:
        recorder.close()
    return folder


def losses(run: Run) -> list[float]:
    signal = run.signals.get("loss")
    assert signal is not None
    return [float(value) for value in signal.values]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return open_run(str(train(tmp_path / "record")))


def test_ranks_are_one_record(run: Run) -> None:
    assert run.flight.steps == (2, 3, 4)
    assert [step.kept for step in run.flight] == ["last_good", "first_bad", "after"]
    assert losses(run) == pytest.approx([0.1] * 5)  # of rank 0
    assert run.notes == ()


def test_rows_of_a_step_are_joined_in_the_order_of_ranks(run: Run) -> None:
    batch = run.rollouts.batch(3)
    assert batch.sample == ["3-0-0", "3-0-1", "3-1-0", "3-1-1"]
    assert batch.rank is not None
    assert batch.rank.tolist() == [0, 0, 1, 1]
    capture = run.captures.at(3)
    assert capture.arrays["token_id"].tolist() == [[2, 3, 0]] * 2 + [[12, 13, 14]] * 2
    assert capture.arrays["completion_mask"].tolist() == [[1, 1, 0]] * 2 + [[1, 1, 1]] * 2
    logp = [[-1, -1, np.nan]] * 2 + [[-2, -2, -2]] * 2
    assert np.array_equal(capture.arrays["logp_new"], logp, equal_nan=True)
    advantage = capture.arrays["advantage"]
    assert advantage.tolist() == [[0.25] * 3, [-0.25] * 3, *[[0.5, 1.5, 2.5]] * 2]
    assert capture.nbytes >= sum(array.nbytes for array in capture.arrays.values())
    assert len(run.captures.sources(3)) == len(run.rollouts.sources(3)) == 2


def test_ledgers_and_stages_are_joined_and_ranks_filled_in(run: Run) -> None:
    step = run.flight.at(3)
    assert [(m.rank, m.samples[0]) for m in step.microbatches] == [(0, "3-0-0"), (1, "3-1-0")]
    assert step.stages.generated == ("3-0-0", "3-0-1", "3-1-0", "3-1-1")
    assert step.whole_groups is True


def test_the_first_value_that_is_not_finite_on_any_rank_is_seen(run: Run) -> None:
    step = run.flight.at(3)
    assert (step.trail_rank, step.trail[1].n_nonfinite) == (1, 3)
    assert step.norms[0].before_clip == 1.0  # of rank 0
    assert (run.flight.at(2).trail_rank, run.flight.at(2).trail[1].n_nonfinite) == (0, 0)


def test_an_alarm_is_an_event_of_its_own(run: Run) -> None:
    told = [(e.kind, e.step, e.text) for e in run.events]
    assert told == [
        ("alarm", 3, "rank 1: not finite: `loss`"),
        ("end", None, "the recorder was closed"),
    ]


def test_a_rank_of_which_nothing_is_left_is_a_note(tmp_path: Path) -> None:
    folder = train(tmp_path / "record", ranks=4)
    shutil.rmtree(folder / "ranks/0002")
    run = open_run(str(folder))
    assert [(n.code, n.text) for n in run.notes] == [
        ("rank_lost", "of 4 ranks 1 left no record: 2"),
    ]
    assert run.rollouts.batch(3).sample == [f"3-{r}-{i}" for r in (0, 1, 3) for i in (0, 1)]
    shutil.rmtree(folder / "ranks/0003")
    run = open_run(str(folder))  # the last one: only the number of processes tells
    assert [n.text for n in run.notes] == ["of 4 ranks 2 left no record: 2, 3"]


def test_one_rank_that_records_alone_has_lost_nobody(tmp_path: Path) -> None:
    with Recorder(tmp_path / "record", environment={"WORLD_SIZE": "8"}) as recorder:
        recorder.scalars(1, loss=0.1)
        hold(recorder, 0, 1)
    assert open_run(str(tmp_path / "record")).notes == ()


def test_a_step_that_one_rank_lacks_is_a_note_and_claims_no_whole_groups(tmp_path: Path) -> None:
    folder = train(tmp_path / "record")
    shutil.rmtree(folder / "ranks/0001/steps/00000003")
    run = open_run(str(folder))
    (note,) = run.notes
    assert note.text == "rank 1 did not keep 1 of 3 captured steps, the first is 3"
    assert run.flight.at(3).whole_groups is None
    assert run.flight.at(2).whole_groups is True
    assert run.rollouts.batch(3).sample == ["3-0-0", "3-0-1"]


def test_rows_without_their_arrays_do_not_shift_those_of_other_ranks(tmp_path: Path) -> None:
    folder = train(tmp_path / "record", ranks=3)
    (folder / "ranks/0001/steps/00000003/tokens.safetensors").unlink()
    run = open_run(str(folder))
    assert run.rollouts.batch(3).sample == ["3-0-0", "3-0-1", "3-2-0", "3-2-1"]
    assert len(run.captures.at(3).arrays["token_id"]) == 4


def test_what_one_rank_kept_a_step_for_is_told(tmp_path: Path) -> None:
    folder = train(tmp_path / "record")
    for name in ("kept", "why"):
        file = folder / "steps/00000003/step.json"
        about = json.loads(file.read_text())
        del about[name]
        file.write_text(json.dumps(about))
    step = open_run(str(folder)).flight.at(3)
    assert (step.kept, step.why) == ("first_bad", "not finite: `loss`")


def test_runs_of_their_own_are_still_not_read_as_one(tmp_path: Path) -> None:
    train(tmp_path / "a")
    train(tmp_path / "b")
    with pytest.raises(UserError, match="holds 2 records"):
        open_run(str(tmp_path))


def test_a_record_below_the_folder_of_the_run_has_its_ranks_too(tmp_path: Path) -> None:
    train(tmp_path / "run/record")
    run = open_run(str(tmp_path / "run"))
    assert run.flight.steps == (2, 3, 4)
    assert len(run.rollouts.batch(3).completions) == 4


def test_steps_in_the_ring_are_read_as_kept_ones(tmp_path: Path) -> None:
    recorder = Recorder(
        tmp_path / "record", baseline_every=0, process_ends=False
    )  # never closed: it was killed
    for step in range(1, 5):
        recorder.scalars(step, loss=0.1)
        hold(recorder, 0, step)
    recorder.keep("a look")
    steps, ring = tmp_path / "record/steps", tmp_path / "record/ring"
    shutil.copytree(steps / "00000004", ring / "00000004")
    (ring / "00000004/step.json").write_text('{"step": 4, "why": "older"}')
    (ring / "00000009.unfinished-7").mkdir()
    shutil.copy(ring / "00000003/rollouts.jsonl", ring / "00000009.unfinished-7")
    run = open_run(str(tmp_path / "record"))
    assert [(s.step, s.kept) for s in run.flight] == [
        (1, "ring"), (2, "ring"), (3, "ring"), (4, "call"),
    ]  # fmt: skip
    assert run.flight.at(4).why == "a look"
    assert run.rollouts.steps.tolist() == [1, 2, 3, 4]
    assert run.captures.steps.tolist() == [1, 2, 3, 4]
    assert [n.code for n in run.notes] == ["not_closed"]


def test_files_of_its_own_bookkeeping_are_no_files_of_the_run(tmp_path: Path) -> None:
    folder = train(tmp_path / "record")
    (folder / "keeps.jsonl").write_text('{"step": 3, "loss": 9.0}\n')
    (folder / ".lock").write_text("")
    run = open_run(str(folder))
    assert losses(run) == pytest.approx([0.1] * 5)
    assert run.notes == ()
