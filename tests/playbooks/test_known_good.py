"""Facts about versions: refused where they do not fit, and never more than support."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.causes import causes
from firstbad.playbooks.known_good import (
    known_good_schema,
    lint_known_good,
    load_known_good,
)
from firstbad.playbooks.results import Verdict
from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Evidence, Table
from firstbad.tools.known_good import parse_known_good
from firstbad.tools.records.known_faults import FAULTS, MET, NOT_SAID

SOUND: dict[str, Any] = {
    "name": "known_good",
    "title": "Mine",
    "faults": [
        {
            "id": "f",
            "package": "trl",
            "versions": {"before": "1.9.1"},
            "cause": "grad.accumulation_scale",
            "bites_if": {"loss_type": ["dapo"], "use_vllm": True, "beta": "> 0", "seed": "set"},
            "says": "the loss was off by a factor",
            "source": "https://github.com/huggingface/trl/pull/6024",
        }
    ],
    "meanings": [
        {
            "package": "trl",
            "key": "kl",
            "versions": {"before": "1.9"},
            "means": "the mean of the means",
            "source": "released source of TRL 1.16.0",
        },
        {
            "package": "trl",
            "key": "kl",
            "versions": {"since": "1.9"},
            "means": "the mean of all tokens",
            "source": "released source of TRL 1.16.0",
        },
    ],
}
FAULT = ("faults", 0)


def changed(path: tuple[Any, ...], value: Any) -> bytes:
    facts = copy.deepcopy(SOUND)
    place: Any = facts
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return yaml.safe_dump(facts).encode()


def refusal(raw: bytes, tmp_path: Path) -> str:
    path = tmp_path / "known_good.yaml"
    path.write_bytes(raw)
    with pytest.raises(UserError) as error:
        load_known_good(str(path))
    return str(error.value)


def test_a_sound_file(tmp_path: Path) -> None:
    path = tmp_path / "known_good.yaml"
    path.write_text(yaml.safe_dump(SOUND))
    loaded = load_known_good(str(path))
    assert loaded.facts.faults[0].bites_if["loss_type"] == ("dapo",)
    assert loaded.path == str(path)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ((*FAULT, "cause"), "grad.scale", ["fault `f`: no cause `grad.scale`", "nearest"]),
        ((*FAULT, "package"), "trll", ["no framework `trll`", "trl"]),
        ((*FAULT, "versions"), {}, ["expected `since`, `before` or both, or else `reported_in`"]),
        ((*FAULT, "versions"), {"before": "1.9.1rc1"}, ["expected a released version"]),
        ((*FAULT, "versions"), {"before": 1.9}, ["expected a released version"]),
        ((*FAULT, "versions"), {"since": "1.9", "before": "1.8"}, ["is not before"]),
        (
            (*FAULT, "versions"),
            {"since": "1.9", "reported_in": ["1.9"]},
            ["expected `since`, `before` or both, or else `reported_in`"],
        ),
        ((*FAULT, "bites_if"), {}, ["faults.0.bites_if"]),
        ((*FAULT, "bites_if", "beta"), "over 0", ["faults.0.bites_if.beta", "expected true"]),
        ((*FAULT, "source"), "https://example.org/x", ["faults.0.source"]),
        ((*FAULT, "source"), "https://github.com/huggingface/trl", ["faults.0.source"]),
        ((*FAULT, "says"), "it ends with a stop.", ["faults.0.says"]),
        ((*FAULT, "severity"), "high", ["faults.0.severity", "not permitted"]),
        (("meanings", 1, "versions"), {"since": "1.8"}, ["`kl` in trl: two entries hold"]),
        (("meanings", 0, "versions"), {"since": "1.0"}, ["`kl` in trl: two entries hold"]),
        (("faults",), [SOUND["faults"][0]] * 2, ["faults: `f` stands 2 times"]),
        (("name",), "other", ["name"]),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, path: tuple[Any, ...], value: Any, says: list[str]
) -> None:
    told = refusal(changed(path, value), tmp_path)
    assert told.startswith(str(tmp_path / "known_good.yaml"))
    for text in says:
        assert text in told


@pytest.mark.parametrize("raw", [b"name: [", b"a: b: c", b"name: known_good\nname: known_good\n"])
def test_what_is_not_yaml_is_refused(tmp_path: Path, raw: bytes) -> None:
    assert "not readable as YAML" in refusal(raw, tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file"):
        load_known_good(str(tmp_path / "known_good.yaml"))


def test_the_shipped_file_is_sound_and_so_is_its_schema(repo: Path) -> None:
    facts = load_known_good().facts
    assert list(lint_known_good(facts)) == []
    assert {fault.cause for fault in facts.faults} <= set(causes())
    schema = json.loads(known_good_schema())
    assert schema["$defs"]["Fault"]["properties"]["cause"]["enum"] == list(causes())
    kept = (repo / "playbooks" / "known_good.schema.json").read_text(encoding="utf-8")
    assert kept == known_good_schema(), "run `firstbad playbook schema known_good` and keep it"


@pytest.mark.parametrize(("lists", "problems"), [(("group", "batch"), 0), (("group", "group"), 1)])
def test_meanings_under_other_settings_do_not_overlap(
    lists: tuple[str, str], problems: int
) -> None:
    facts = copy.deepcopy(SOUND)
    for entry, text in zip(facts["meanings"], lists, strict=True):
        entry |= {"versions": {"before": "1.9"}, "when": {"scale_rewards": [text]}}
    found = list(lint_known_good(parse_known_good(yaml.safe_dump(facts).encode(), "x")))
    assert len(found) == problems


def test_reports_do_not_overlap_with_ranges() -> None:
    facts = copy.deepcopy(SOUND)
    facts["meanings"][1]["versions"] = {"reported_in": ["1.8"]}
    assert list(lint_known_good(parse_known_good(yaml.safe_dump(facts).encode(), "x"))) == []


# ------------------------------------------------------------------------------- what it may do


def on_record(cause: str, settings: str) -> Evidence:
    row = (cause, "it was so", settings, "https://github.com/huggingface/trl/issues/1")
    return Evidence(
        id="E99",
        tool="check_known_faults",
        tool_version="0",
        args={},
        status="measured",
        metrics={"n_met": 1},
        tables=(
            Table(title=FAULTS, columns=("cause", "fault", "settings", "source"), rows=(row,)),
        ),
    )


@pytest.mark.parametrize(
    ("cause", "settings", "supports"),
    [
        ("prob.weight_sync", MET, True),
        ("prob.weight_sync", NOT_SAID, False),
        ("grad.objective", MET, False),
    ],
)
def test_a_fault_on_record_supports_a_finding_of_its_cause(
    verdict: Callable[..., Verdict], cause: str, settings: str, supports: bool
) -> None:
    parted = {"n": 9, "gap": 4.0, "first_bad_step": 50, "last_good_step": 49}
    plain = verdict(same=parted)
    found = verdict(same=parted, known=on_record(cause, settings))
    (finding,) = found.findings
    assert finding.cause == "prob.weight_sync"
    assert ("E99" in finding.supports) is supports
    assert finding.confidence == plain.findings[0].confidence
    assert finding.supports[0] == plain.findings[0].supports[0]


def test_alone_it_makes_no_finding(verdict: Callable[..., Verdict]) -> None:
    found = verdict(known=on_record("prob.weight_sync", MET))
    assert (found.outcome, found.findings) == ("healthy", ())


@pytest.mark.parametrize(("version", "told"), [("1.9.0", 1), ("1.16.0", 0), ("1.9.0rc1", 0)])
def test_a_run_of_such_a_version_is_told_so_and_no_more(
    repo: Path, tmp_path: Path, version: str, told: int
) -> None:
    run = Path(shutil.copytree(repo / "tests" / "runs" / "siskin", tmp_path / "run"))
    args = json.loads((run / "args.json").read_text())
    args |= {"use_vllm": True, "vllm_enable_sleep_mode": True}
    (run / "args.json").write_text(json.dumps(args))
    (run / "requirements.txt").write_text(f"trl=={version}\n")
    done = investigate(str(run), out=tmp_path / "incidents")
    assert isinstance(done, Finished)
    assert done.verdict.findings == ()
    notes = [note for note in done.verdict.notes if note.startswith("On record for trl 1.9.0")]
    assert len(notes) == told
    assert all("trl/issues/5312" in note for note in notes)


@pytest.mark.parametrize(("version", "told"), [("1.16.0", 1), ("1.17.0", 0)])
def test_a_ratio_of_itself_is_told_to_say_nothing(
    repo: Path, tmp_path: Path, version: str, told: int
) -> None:
    run = Path(shutil.copytree(repo / "tests" / "runs" / "siskin", tmp_path / "run"))
    (run / "requirements.txt").write_text(f"trl=={version}\n")
    done = investigate(str(run), out=tmp_path / "incidents")
    assert isinstance(done, Finished)
    assert sum("ratios are 1 says nothing" in note for note in done.verdict.notes) == told
