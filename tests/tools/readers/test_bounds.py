"""Trees, steps and texts that are too large: a bound, and a line that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools import paths
from firstbad.tools.errors import UserError
from firstbad.tools.readers import arrow, open_run, shelf


def test_a_tree_of_too_many_unlike_files_is_refused(tmp_path: Path, make: Any) -> None:
    make.jsonl("metrics.jsonl", [{"step": s, "reward": 0.5} for s in range(1, 4)])
    for i in range(paths.MAX_KINDS - 1):
        make.text(f"notes/{_word(i)}.txt", "")
    assert open_run(str(tmp_path)).signals.steps.tolist() == [1, 2, 3]
    make.text("notes/one-more.txt", "")
    with pytest.raises(UserError, match=r"too much for one run: after \d+ files, 301 of them"):
        open_run(str(tmp_path))


def test_files_that_differ_in_numbers_or_hashes_are_alike(tmp_path: Path, make: Any) -> None:
    make.jsonl("metrics.jsonl", [{"step": s, "reward": 0.5} for s in range(1, 4)])
    for i in range(400):
        make.text(f"ranks/rank_{i}/out_{i:08x}abcd.txt", "")
        make.text(f"code/{_word(i)}.py", "")
    assert open_run(str(tmp_path)).signals.steps.tolist() == [1, 2, 3]


def _word(i: int) -> str:
    return "".join("ghijklmnop"[int(digit)] for digit in str(i))


def test_too_many_files_are_refused(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "MAX_FILES", 20)
    for i in range(21):
        make.jsonl(f"{i}.jsonl", [{"step": i, "reward": 0.5}])
    with pytest.raises(UserError, match="too much for one run"):
        open_run(str(tmp_path))


@pytest.mark.parametrize("ref", ["/proc", "jsonl:/proc/self", "/sys"])
def test_the_system_s_own_files_are_no_run(ref: str) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("no such files here")
    with pytest.raises(UserError, match="the system's own"):
        open_run(ref)


def test_several_runs_are_refused_by_a_prefix_too(tmp_path: Path, make: Any) -> None:
    for name in ("a", "b"):
        make.state(f"{name}/trainer_state.json", [{"step": 1, "reward": 0.5}])
        make.board(f"{name}/runs/events.out.tfevents.1.h", [{"step": 1, "reward": 0.5}])
    with pytest.raises(UserError, match="holds 2 runs: a, b"):
        open_run(f"tb:{tmp_path}")


def test_a_folder_that_may_not_be_read_hides_no_run_beside_it(tmp_path: Path, make: Any) -> None:
    make.state("a/trainer_state.json", [{"step": 1, "reward": 0.5}])
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    try:
        with pytest.raises(UserError, match=r"holds one: name `.*/a`"):
            open_run(str(tmp_path))
    finally:
        closed.chmod(0o700)


def dictionary_table(rows: int, text: str, **columns: Any) -> Any:
    import pyarrow as pa

    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))
    score = pa.array(np.linspace(0, 1, rows))
    return pa.table({**columns, "prompt": same, "completion": same, "reward": score})


@pytest.mark.parametrize("name", ["completions/completions_00001.parquet", "rollouts/1.parquet"])
def test_a_step_of_too_many_rows_is_cut_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(arrow, "MAX_ROWS", 128)
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    pq.write_table(dictionary_table(1000, "x y"), path)
    run = open_run(str(tmp_path))
    batch = run.rollouts.batch(1)
    assert len(batch) == 128
    assert batch.completions[0] == "x y"
    (note,) = [note.text for note in run.notes if note.code == "rows_cut"]
    assert "the first 128 of 1,000 rows were read" in note


def test_a_step_of_too_much_text_is_cut_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(arrow, "MAX_TEXT_BYTES", 1_000_000)
    monkeypatch.setattr(arrow, "PORTION_BYTES", 600_000)
    path = tmp_path / "completions" / "completions_00001.parquet"
    path.parent.mkdir()
    pq.write_table(dictionary_table(1000, "x " * 2000), path)
    assert path.stat().st_size < 100_000
    # 68 rows at a time, each held to be as large as the whole row group is stored: the second
    # portion goes beyond a megabyte.
    assert len(open_run(str(tmp_path)).rollouts.batch(1)) == 2 * 68


def test_small_steps_are_whole(tmp_path: Path, make: Any) -> None:
    rows = [{"step": 1, "prompt": "p", "completion": str(i), "reward": 0.5} for i in range(200)]
    make.completions(1, rows)
    run = open_run(str(tmp_path))
    assert list(run.rollouts.batch(1).completions) == [str(i) for i in range(200)]
    assert not [note for note in run.notes if note.code == "rows_cut"]


def test_rows_of_one_step_in_a_file_of_many(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "MAX_ROWS", 10)
    rows = [
        {"step": s, "prompt": "p", "completion": f"c{i}", "reward": 0.5}
        for s in (1, 2)
        for i in range(8 * s)
    ]
    make.jsonl("rollouts.jsonl", rows)
    run = open_run(str(tmp_path))
    assert [len(batch) for batch in run.rollouts.batches()] == [8, 10]
    (note,) = [note.text for note in run.notes if note.code == "rows_cut"]
    assert note == "step 2: the first 10 of 16 rows are used"
