"""`certificate.json` of a record: a file that anybody may have written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from firstbad.tools.certificate import Certificate, Certified, CertifiedCheck
from firstbad.tools.errors import UserError
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.jsonish import parse_object
from firstbad.tools.readers.texts import as_text

_MAX_BYTES = 2**20
_MAX_CHECKS = 100
_LARGEST = 1e300
_DIGEST = re.compile(r"[0-9a-f]{64}")
_OF_CODE = ("loss_code", "model_shape")
_OF_RUN = ("config", "versions")


def read_certificate(root: Root, file: File, about: Mapping[str, Any]) -> Certificate | None:
    """The certificate, with its key held against each process of the run's `run.json`."""
    data = root.try_read(file, _MAX_BYTES)
    if data is None:
        return None
    try:
        said = parse_object(data, file.name)
    except UserError as error:
        root.note("file_skipped", str(error))
        return None
    if said.get("schema_version") != 1:
        root.note("file_skipped", f"`{file.name}` is no certificate of version 1")
        return None
    rows = said.get("checks")
    restarts = about.get("restarts")
    later = [p for p in restarts if isinstance(p, dict)] if isinstance(restarts, list) else []
    key = said.get("key")
    return Certificate(
        made=as_text(said.get("made"), 40),
        checks=tuple(_checks(rows[:_MAX_CHECKS] if isinstance(rows, list) else [])),
        differs=_differs(key if isinstance(key, dict) else {}, [about, *later]),
    )


def _checks(rows: list[object]) -> Iterator[CertifiedCheck]:
    for row in rows:
        if not isinstance(row, dict) or row.get("name") not in get_args(Certified):
            continue
        outcome = row.get("outcome")
        yield CertifiedCheck(
            row["name"],
            outcome if outcome in ("pass", "fail") else "not_run",
            _numbers(row.get("measured")),
            _numbers(row.get("bound")),
            as_text(row.get("text"), 500),
        )


def _differs(key: Mapping[str, object], processes: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """Parts of the key that are not those of every process."""
    found = []
    for name in (*_OF_CODE, *_OF_RUN):
        wanted = key.get(name)
        known = isinstance(wanted, str) and _DIGEST.fullmatch(wanted) is not None
        if not known or any(_part(name, process) != wanted for process in processes):
            found.append(name)
    return tuple(found)


def _part(name: str, process: Mapping[str, Any]) -> object:
    if name in _OF_RUN:
        return _digest(process.get(name))
    own = process.get("preflight_key")
    return own.get(name) if isinstance(own, dict) else None


def _digest(value: object) -> str | None:
    """sha256 of its JSON in ASCII, keys sorted, without spaces; None where there is none."""
    if not isinstance(value, dict):
        return None
    try:
        text = json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):  # an integer of thousands of digits, or far too deep
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def _numbers(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    return {
        as_text(name, 80): float(number)
        for name, number in list(value.items())[:_MAX_CHECKS]
        if isinstance(number, (int, float))
        and not isinstance(number, bool)
        and abs(number) < _LARGEST
    }
