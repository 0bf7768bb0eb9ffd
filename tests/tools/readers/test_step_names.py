"""Which number of a file's name is the step, and files of several ranks as one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firstbad.tools.readers import open_run
from firstbad.tools.readers.step_names import named_for_steps, steps_of_names

Rows = Callable[[int], list[dict[str, Any]]]


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["12"], [12]),
        (["step_12"], [12]),
        (["completions_00001_rank0"], [1]),
        (["rank3_completions_00007", "rank4_completions_00007"], [7, 7]),
        (["step_1_part_0", "step_12_part_1"], [1, 12]),
        (["rollouts_worker-3"], [None]),
        (["epoch2_rollouts_5.shard_0"], [5]),
        (["completions_4-00000-of-00008"], [4]),
        (["rollouts_qwen2.5-7b_00012", "rollouts_qwen2.5-7b_00013"], [12, 13]),
        (["rollouts_2026-11-30_1", "rollouts_2026-11-30_2"], [1, 2]),
        (["rollouts_3_12", "rollouts_4_13"], [None, None]),
        (["rollouts_3_12"], [None]),
        (["step_3_of_step_12"], [None]),
        (["rollouts_1234567890123456"], [None]),
        (["env12"], [None]),
    ],
)
def test_a_number_is_the_step_where_no_other_can_be(
    names: list[str], steps: list[int | None]
) -> None:
    assert steps_of_names(names) == steps


def test_names_that_are_those_of_steps() -> None:
    assert all(map(named_for_steps, ["12", "step_12", "rollouts_3_12", "completions-7"]))
    assert not any(map(named_for_steps, ["out_3", "rollouts", "rollouts_rank3", "qwen2"]))


def write(path: Path, rows: list[dict[str, Any]], *, column: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [{k: v for k, v in row.items() if column or k != "step"} for row in rows]
    pq.write_table(pa.Table.from_pylist(kept), path)


@pytest.mark.parametrize("column", [True, False])
@pytest.mark.parametrize("folder", ["completions", "out"])
def test_files_of_several_ranks_are_one_step(
    tmp_path: Path, rollouts: Rows, folder: str, column: bool
) -> None:
    for step in range(1, 7):
        rows = rollouts(step)
        half = len(rows) // 2
        for rank in (0, 1):
            name = f"completions_{step:05d}_rank{rank}.parquet"
            write(tmp_path / folder / name, rows[rank * half :][:half], column=column)
    run = open_run(str(tmp_path))
    assert run.rollouts.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert [len(b) for b in run.rollouts.batches()] == [len(rollouts(1))] * 6
    assert list(run.rollouts.batch(2).completions) == [r["completion"] for r in rollouts(2)]
    assert len(run.rollouts.sources(2)) == 2


def test_the_step_column_wins(tmp_path: Path, rollouts: Rows) -> None:
    """Files that are numbered by rank, in the folder in which TRL numbers them by step."""
    for rank in range(4):
        rows = [row for step in (1, 2, 3) for row in rollouts(step)[rank::4]]
        write(tmp_path / "completions" / f"completions_{rank}.parquet", rows, column=True)
    run = open_run(str(tmp_path))
    assert run.rollouts.steps.tolist() == [1, 2, 3]
    assert len(run.rollouts.batch(1)) == len(rollouts(1))


def test_ranks_that_take_turns_with_the_steps(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    """The first row of each file has the step that its number says; the others do not."""
    for rank in range(4):
        rows = [row for step in range(rank, 12, 4) for row in rollouts(step)]
        make.jsonl(f"rollouts_{rank}.jsonl", rows)
    assert open_run(str(tmp_path)).rollouts.steps.tolist() == list(range(12))


def test_what_can_not_be_told_is_left_out(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    def bare(step: int) -> list[Mapping[str, Any]]:
        return [{k: v for k, v in row.items() if k != "step"} for row in rollouts(step)]

    make.jsonl("m.jsonl", [{"step": step, "reward": 0.5} for step in range(1, 9)])
    for i in range(1, 4):
        make.jsonl(f"rollouts_{i}_{i + 8}.jsonl", bare(i))
    run = open_run(str(tmp_path))
    assert not run.rollouts
    (said,) = [note.text for note in run.notes if note.code == "file_skipped"]
    assert "`rollouts_1_9.jsonl` and 2 more like it: no step in their rows" in said
    for i in range(1, 4):  # the same names, with the step in the rows
        make.jsonl(f"rollouts_{i}_{i + 8}.jsonl", rollouts(i))
    assert open_run(str(tmp_path)).rollouts.steps.tolist() == [1, 2, 3]


def test_a_single_file_without_a_step_is_shown(make: Any, rollouts: Rows) -> None:
    rows = [{k: v for k, v in row.items() if k != "step"} for row in rollouts(1)]
    run = open_run(str(make.jsonl("rollouts_3_12.jsonl", rows)))
    assert run.rollouts.steps.tolist() == [0]
    assert "step_unknown" in {note.code for note in run.notes}


@pytest.mark.parametrize("column", [True, False])
@pytest.mark.parametrize("name", ["attempt_{}_step_{}", "attempt-{}/step_{}", "step_{1}_retry{0}"])
def test_the_last_attempt_at_a_step_counts(
    tmp_path: Path, rollouts: Rows, name: str, column: bool
) -> None:
    for attempt, steps in ((0, range(1, 7)), (1, range(5, 9))):
        for step in steps:
            rows = [{**row, "completion": f"{attempt}"} for row in rollouts(step)]
            path = f"rollouts/{name.format(attempt, step)}.parquet"
            write(tmp_path / path, rows, column=column)
    run = open_run(str(tmp_path))
    assert run.rollouts.steps.tolist() == [*range(1, 9)]
    assert [set(b.completions) for b in run.rollouts.batches()] == [{"0"}] * 4 + [{"1"}] * 4
    assert [len(run.rollouts.sources(s)) for s in (4, 5)] == [1, 1]
    (said,) = [note.text for note in run.notes if note.code == "file_skipped"]
    assert said.startswith("2 steps from 5 to 6 are in the files of several attempts")


@pytest.mark.parametrize("column", [True, False])
@pytest.mark.parametrize("name", ["epoch_{}_step_{}", "epoch{}/rank0_step_{}"])
def test_epochs_that_count_steps_of_their_own_are_left_out(
    make: Any, tmp_path: Path, rollouts: Rows, name: str, column: bool
) -> None:
    make.jsonl("m.jsonl", [{"step": step, "reward": 0.5} for step in range(1, 9)])
    for epoch in (0, 1):
        for step in (1, 2, 3):
            path = f"rollouts/{name.format(epoch, step)}.parquet"
            write(tmp_path / path, rollouts(step), column=column)
    run = open_run(str(tmp_path))
    assert not run.rollouts
    (said,) = [note.text for note in run.notes if note.code == "file_skipped"]
    assert "and 5 more like it: 3 steps from 1 to 3 are in several of the epochs" in said


def test_a_step_across_the_end_of_an_epoch(tmp_path: Path, rollouts: Rows) -> None:
    for step in range(1, 7):
        rows = rollouts(step)
        parts = {0: rows[:2], 1: rows[2:]} if step == 3 else {step // 4: rows}
        for epoch, part in parts.items():
            write(tmp_path / f"rollouts/epoch_{epoch}_step_{step}.parquet", part, column=False)
    run = open_run(str(tmp_path))
    assert [len(b) for b in run.rollouts.batches()] == [len(rollouts(1))] * 6
    assert "file_skipped" not in {note.code for note in run.notes}
