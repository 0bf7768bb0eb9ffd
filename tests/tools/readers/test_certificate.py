"""A certificate holds where its key is that of every process; anybody may have written it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.certificate import Certificate
from firstbad.tools.readers import open_run
from firstbad_recorder import Recorder
from firstbad_recorder.certificate import digest, write_certificate

KEY = {"loss_code": "0" * 64, "model_shape": "f" * 64}
CONFIG = {"beta": 0.0, "learning_rate": 1e-6, "reward_weights": [1.0, 0.5], "Übung": None}
VERSIONS = {"torch": "2.13.0"}
CHECKS: list[dict[str, object]] = [
    {
        "name": "accumulation",
        "outcome": "pass",
        "measured": {"norm_ratio": 1.0, "bad": "NaN", "flag": True},
        "bound": {"norm_ratio": 1.01},
        "text": "one batch and four micro-batches give one gradient",
    },
    {"name": "mask_construction", "outcome": "fail"},
    {"name": "loss_numerics", "outcome": "not_run"},
]


def record(folder: Path, **other: Any) -> Path:
    """A process that records; `other` than what the certificate was made for."""
    about = {"config": CONFIG, "versions": VERSIONS, "preflight_key": KEY, **other}
    with Recorder(folder, **about) as recorder:
        recorder.scalars(1, loss=0.1)
    return folder


def certify(folder: Path, checks: list[dict[str, object]] = CHECKS) -> None:
    write_certificate(folder, checks, config=CONFIG, versions=VERSIONS, preflight_key=KEY)


def certificate_of(folder: Path) -> Certificate | None:
    return open_run(str(folder)).flight.certificate


def test_a_certificate_is_read_with_its_figures(tmp_path: Path) -> None:
    certify(tmp_path)
    found = certificate_of(record(tmp_path))
    assert found is not None
    assert found.differs == ()
    assert found.made.endswith("+00:00")
    first = found.checks[0]
    assert (first.measured, first.bound) == ({"norm_ratio": 1.0}, {"norm_ratio": 1.01})
    assert first.text == "one batch and four micro-batches give one gradient"
    assert [found.outcome(c.name) for c in found.checks] == [True, False, None]
    assert found.outcome("trainer_repeatability") is None


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ({"config": {**CONFIG, "beta": 0.04}}, ("config",)),
        ({"versions": {"torch": "2.13.1"}}, ("versions",)),
        ({"versions": None}, ("versions",)),
        ({"preflight_key": {**KEY, "loss_code": "1" * 64}}, ("loss_code",)),
        ({"preflight_key": None}, ("loss_code", "model_shape")),
    ],
)
def test_another_run_is_not_certified(
    tmp_path: Path, other: dict[str, Any], differs: tuple[str, ...]
) -> None:
    certify(tmp_path)
    found = certificate_of(record(tmp_path, **other))
    assert found is not None
    assert found.differs == differs
    assert found.outcome("accumulation") is None


@pytest.mark.parametrize("first", [True, False])
def test_every_process_of_the_run_must_be_the_one_that_was_checked(
    tmp_path: Path, first: bool
) -> None:
    certify(tmp_path)
    record(tmp_path, **({} if first else {"versions": {"torch": "2.12.0"}}))
    found = certificate_of(record(tmp_path, **({"config": {"beta": 1}} if first else {})))
    assert found is not None
    assert found.differs == (("config",) if first else ("versions",))


def test_a_check_that_failed_once_has_not_passed(tmp_path: Path) -> None:
    certify(tmp_path, [*CHECKS, {"name": "accumulation", "outcome": "fail"}])
    found = certificate_of(record(tmp_path))
    assert found is not None
    assert found.outcome("accumulation") is False


def test_the_digest_is_that_of_the_format() -> None:
    assert digest({"b": 1, "a": [None, "é"]}) == digest({"a": [None, "é"], "b": 1})
    text = '{"a":[null,"\\u00e9"],"b":1}'
    assert digest({"b": 1, "a": [None, "é"]}) == hashlib.sha256(text.encode()).hexdigest()


def _no_key(said: dict[str, Any]) -> None:
    del said["key"]


def _odd_key(said: dict[str, Any]) -> None:
    said["key"] = {"loss_code": ["0" * 64], "config": None, "versions": 7, "model_shape": {}}


def _odd_checks(said: dict[str, Any]) -> None:
    said["checks"] = [
        7, None, {"name": ["accumulation"]}, {"name": "delivered", "outcome": "pass"},
        {"name": "accumulation", "outcome": True, "measured": [1], "text": {"a": 1}},
        {"name": "mask_construction", "outcome": ["pass"], "measured": {"x": 10**400}},
    ]  # fmt: skip


@pytest.mark.parametrize("edit", [_no_key, _odd_key, _odd_checks])
def test_what_is_no_certificate_certifies_nothing(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    certify(tmp_path)
    file = tmp_path / "certificate.json"
    said = json.loads(file.read_text())
    edit(said)
    file.write_text(json.dumps(said))
    found = certificate_of(record(tmp_path))
    assert found is not None
    names = ("loss_numerics", "mask_construction", "accumulation", "trainer_repeatability")
    assert [found.outcome(name) for name in names] == [None] * 4  # type: ignore[arg-type]
    assert {check.name for check in found.checks} <= set(names)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema_version": 2}', "[" * 5000, '{"schema_version": 1e999}', "\0"]
)
def test_a_file_that_cannot_be_read_is_a_note(tmp_path: Path, text: str) -> None:
    record(tmp_path)
    (tmp_path / "certificate.json").write_text(text)
    run = open_run(str(tmp_path))
    assert run.flight.certificate is None
    assert [note.code for note in run.notes] == ["file_skipped"]
