from __future__ import annotations

import gc
import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest

from firstbad.agent import incident as incidents
from firstbad.agent.files import write_atomic
from firstbad.agent.garbage import NEW_OBJECTS, rarely_collected
from firstbad.tools.errors import UserError

RECORD: dict[str, Any] = {
    "run": "trl:heron",
    "run_at": "/data/heron",
    "framework": "trl",
    "complaint": "奖励掉了 at step 4",
    "noticed_step": 4,
    "symptoms": ("reward_drop",),
    "playbook": {"name": "fake", "digest": "sha256:0", "path": "fake"},
    "versions": {"firstbad": "0"},
}


def test_ids_are_short_sortable_and_unique(tmp_path: Path) -> None:
    made = [incidents.create(RECORD, tmp_path).id for _ in range(50)]
    assert len(set(made)) == 50
    assert all(re.fullmatch(r"\d{8}-\d{6}-[2-9a-z]{4}", name) for name in made)
    stamps = [name[:15] for name in made]
    assert stamps == sorted(stamps)
    assert {i.id for i in incidents.listing(tmp_path)} == set(made)


def test_record_is_read_as_written(tmp_path: Path) -> None:
    incident = incidents.create(RECORD, tmp_path)
    record = incident.record()
    assert {k: getattr(record, k) for k in RECORD} == RECORD
    assert record.id == incident.id
    changed = incident.change(waivers=[{"layer": "masks", "reason": "r"}])
    assert incident.record().waivers == tuple(changed.waivers)
    assert incident.record().complaint == RECORD["complaint"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("waivers", 5),
        ("waivers", [{"layer": "masks"}]),
        ("playbook", "x"),
        ("playbook", {}),
        ("run", 5),
        ("noticed_step", "x"),
        ("symptoms", None),
        ("refusals", [5]),
    ],
)
def test_a_record_of_another_form_is_told_by_its_field(
    tmp_path: Path, name: str, value: object
) -> None:
    incident = incidents.create(RECORD, tmp_path)
    path = incident.folder / "incident.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), name: value}))
    with pytest.raises(UserError, match=f"not of the expected form at `{name}`"):
        incident.record()


def test_an_incident_is_found_by_id_and_by_folder(tmp_path: Path, home: Path) -> None:
    there = incidents.create(RECORD)
    assert there.folder.parent == home / "incidents"
    assert incidents.find(there.id) == there
    assert incidents.find(there.id).handle == there.id
    assert incidents.find(str(there.folder)).handle == there.id
    elsewhere = incidents.create(RECORD, tmp_path / "out")
    assert incidents.find(elsewhere.id, tmp_path / "out") == elsewhere
    assert incidents.find(str(elsewhere.folder)).handle == str(elsewhere.folder)
    with pytest.raises(UserError, match=f"newest are {there.id}"):
        incidents.find("20200101-000000-aaaa")


def test_a_draft_that_was_never_finished_is_no_incident(tmp_path: Path) -> None:
    (tmp_path / ".20200101-000000-aaaa").mkdir()
    (tmp_path / ".20200101-000000-aaaa" / "incident.json").write_text("{}")
    (tmp_path / "20200101-000000-bbbb").mkdir()
    assert list(incidents.listing(tmp_path)) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "id": "x"}', "\udcff"]
)
def test_a_broken_record_is_said_plainly(tmp_path: Path, text: str) -> None:
    incident = incidents.create(RECORD, tmp_path)
    (incident.folder / "incident.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError):
        incident.record()


def test_a_folder_that_cannot_be_written_to_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="FIRSTBAD_HOME"):
        incidents.create(RECORD, tmp_path / "file")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "new" * 10_000 + "\udcff")
    assert path.read_text() == "old"
    with pytest.raises(UserError, match="can't be written: no such file"):
        write_atomic(tmp_path / "none" / "a.json", "x")


def test_events_are_lines_of_json(tmp_path: Path) -> None:
    incident = incidents.create(RECORD, tmp_path)
    incident.log("waiver", layer="masks", reason="two\nlines")
    (line,) = (incident.folder / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["reason"] == "two\nlines"


def _hold(folder: Path, ready: Any, done: Any) -> None:
    with incidents.Incident(folder).lock():
        ready.set()
        done.wait(20)


def test_cycles_are_searched_rarely_while_it_works_and_as_before_afterwards() -> None:
    before = gc.get_threshold()
    try:
        for set_before, inside in ((700, NEW_OBJECTS), (0, 0), (10**6, 10**6)):
            gc.set_threshold(set_before, 10, 10)
            with rarely_collected(), rarely_collected():
                assert gc.get_threshold() == (inside, 10, 10)
            assert gc.get_threshold() == (set_before, 10, 10)
    finally:
        gc.set_threshold(*before)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    incident = incidents.create(RECORD, tmp_path)
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(incident.folder, ready, done))
    other.start()
    assert ready.wait(20)
    with pytest.raises(UserError, match=f"process {other.pid};"), incident.lock():
        pass
    done.set()
    other.join(20)
    with incident.lock():
        pass
