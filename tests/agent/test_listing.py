"""Long lists of files as one source: bounded, and sensitive to each of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from firstbad.agent.incident import Incident
from firstbad.agent.investigate import Finished, investigate
from firstbad.agent.listing import FEW, bounded
from firstbad.agent.verify import verify
from firstbad.tools.evidence import Source


def rollouts(count: int, folder: str = "completions") -> list[Source]:
    return [
        Source(kind="rollouts", ref=f"{folder}/{i:05d}.parquet", digest=f"sha256:{i:016x}")
        for i in range(count)
    ]


def test_a_few_files_are_named_and_many_are_one() -> None:
    args = Source(kind="config", ref="args.json", digest="sha256:1")
    few, many = rollouts(FEW, "data"), rollouts(1000)
    assert bounded([args, *few]) == (args, *few)
    kept = bounded([*many, args, *few])
    assert kept[1:] == (args, *few)
    assert (kept[0].kind, kept[0].files) == ("rollouts", 1000)
    assert (kept[0].ref, kept[0].last) == (many[0].ref, many[-1].ref)
    assert bounded([args, *reversed(many)])[1] == kept[0], "in the order of their names"


def test_folders_one_a_step_count_as_one_folder() -> None:
    """A record has a folder for each captured step, with a few files in each."""
    names = ("step.json", "rollouts.jsonl")
    files = [
        Source(kind="record", ref=f"steps/{i:08d}/{name}", digest=f"sha256:{i}{name}")
        for i in range(1000)
        for name in names
    ]
    (kept,) = bounded(files)
    assert kept.files == 2000
    assert (kept.ref, kept.last) == ("steps/00000000/rollouts.jsonl", "steps/00000999/step.json")
    assert bounded(files[:FEW]) == tuple(files[:FEW])


@pytest.mark.parametrize("change", ["digest", "name", "less", "more", "unread"])
def test_every_change_of_the_list_changes_its_digest(change: str) -> None:
    files = rollouts(50)
    before = bounded(files)[0].digest
    if change == "digest":
        files[20] = files[20].model_copy(update={"digest": "sha256:f"})
    elif change == "name":
        files[20] = files[20].model_copy(update={"ref": "completions/00020b.parquet"})
    elif change == "less":
        del files[20]
    elif change == "more":
        files.append(files[20].model_copy(update={"ref": "completions/00020b.parquet"}))
    else:
        files[20] = files[20].model_copy(update={"digest": None})
    assert bounded(files)[0].digest != before


@pytest.fixture
def run(repo: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repo / "tests" / "runs" / "siskin", tmp_path / "run"))


def investigated(run: Path) -> Incident:
    done = investigate(str(run), out=run.parent / "incidents")
    assert isinstance(done, Finished)
    return done.incident


def size(incident: Incident) -> int:
    """Sources that all evidence names."""
    texts = [incident.evidence_text(i) for i in incident.evidence_ids()]
    return sum(text.count('"kind"') for text in texts)


def test_one_changed_file_among_many_is_seen(run: Path) -> None:
    """The rows are the same, so that no measured number differs: only the file does."""
    incident = investigated(run)
    assert verify(str(incident.folder)).differences == ()
    file = run / "completions" / "completions_00050.parquet"
    pq.write_table(pq.read_table(file), file, compression="none")
    changed = verify(str(incident.folder)).differences
    fields = {d.field for d in changed if d.place.startswith("E")}
    assert fields
    assert all(field.endswith(".digest") for field in fields)


def test_an_incident_does_not_grow_with_the_number_of_files(run: Path) -> None:
    whole = size(investigated(run))
    for file in sorted((run / "completions").iterdir())[40:]:
        file.unlink()
    assert abs(size(investigated(run)) - whole) <= 0.1 * whole
