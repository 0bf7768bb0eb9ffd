"""What is told of how a run was read: what lies beside a single file and was not read."""

from __future__ import annotations

from pathlib import Path

from firstbad.agent.remarks import BESIDE, remarks
from firstbad.agent.runs import open_ref

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
