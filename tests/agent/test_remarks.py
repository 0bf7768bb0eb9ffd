"""What is told of how a run was read: what lies beside a single file and was not read."""

from __future__ import annotations

from pathlib import Path

from firstbad.agent.remarks import BESIDE, remarks
from firstbad.agent.runs import open_ref
from firstbad_recorder import Recorder

ROWS = "".join(f"{step},{step / 100}\n" for step in range(1, 31))


def told(ref: str) -> list[str]:
    return [r.text for r in remarks(open_ref(ref), ref, ref) if r.code == BESIDE]


def test_a_file_names_what_lies_beside_it_and_the_folder(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.csv"
    metrics.write_text("step,reward\n" + ROWS)
    assert told(str(metrics)) == []  # alone
    (tmp_path / "other.csv").write_text("step,reward\n" + ROWS)
    assert told(str(metrics)) == []  # perhaps another run
    (tmp_path / "args.json").write_text("{}")
    (tmp_path / "data").mkdir()
    for ref in (str(metrics), f"csv:{metrics}"):
        (text,) = told(ref)
        assert "`args.json`, `data/`" in text
        assert text.endswith(f"firstbad investigate {tmp_path}")
    assert told(str(tmp_path)) == []


def test_a_record_names_the_checkpoints_beside_it_and_the_runs_folder(tmp_path: Path) -> None:
    run = tmp_path / "trainer_output"
    with Recorder(run / "record") as recorder:
        recorder.scalars(1, reward=0.5)
    ref = f"rec:{run / 'record'}"
    assert told(ref) == []  # nothing beside it
    for step in (10, 20):
        (run / f"checkpoint-{step}").mkdir()
        (run / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    for named in (ref, str(run / "record")):
        (text,) = told(named)
        assert "`checkpoint-10/` and 1 more" in text
        assert text.endswith(f"firstbad investigate {run}")
    assert told(str(run)) == []
    with Recorder(run / "record2") as recorder:  # the folder would be two runs
        recorder.scalars(1, reward=0.5)
    assert told(ref) == []
