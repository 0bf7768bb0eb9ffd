"""A cause is spoken of as the run is: without an engine, by its own trial, with why not high."""

from __future__ import annotations

from pathlib import Path

from firstbad.agent.investigate import Finished, investigate
from firstbad.agent.memo.open_questions import how_to_go_on
from firstbad.agent.remarks import remarks
from firstbad.agent.runs import open_ref
from firstbad.playbooks.causes import causes
from firstbad.playbooks.loader import load


def test_without_an_engine_nothing_is_done_to_one(repo: Path, tmp_path: Path) -> None:
    done = investigate(str(repo / "tests" / "runs" / "lynx"), out=tmp_path)
    assert isinstance(done, Finished)
    leading = done.verdict.leading
    assert leading is not None
    assert leading.experiment is not None
    assert leading.cause == "prob.weight_sync"
    said = f"{leading.remedy} {leading.verify} {leading.log_next} {leading.experiment.told()}"
    assert "engine" not in said
    assert "both sides" not in said
    assert "engine" in (causes()["prob.weight_sync"].experiment or leading.experiment).told()


def test_what_cures_a_rate_of_its_own_is_not_said_to_dilute() -> None:
    checks = {c.id: c for layer in load("crash").playbook.layers for c in layer.checks}
    rate = checks["group_rates"].points_to[1]
    assert rate.experiment is not None
    assert rate.dilutes
    assert "rate" not in rate.dilutes
    loaded = checks["resume_holds"].points_to[0]
    assert loaded.experiment is not None
    assert "checksum" in loaded.experiment.change


def test_a_lone_file_goes_on_by_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("step,reward\n" + "".join(f"{i},0.5\n" for i in range(1, 30)))
    done = investigate(str(file), "reward fell", out=tmp_path / "out")
    assert isinstance(done, Finished)
    assert done.verdict.outcome == "undetermined"
    noticed = remarks(open_ref(str(file)), str(file), str(file))
    assert how_to_go_on(done.verdict, noticed) == f"firstbad investigate {tmp_path}"
