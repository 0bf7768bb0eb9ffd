"""`known_good.yaml` held against the causes, frameworks and metrics that exist."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from itertools import combinations
from pathlib import Path

from packaging.version import Version

from firstbad.playbooks.causes import causes
from firstbad.tools.errors import UserError
from firstbad.tools.known_good import KnownGood, Meaning, Versions, parse_known_good
from firstbad.tools.readers.aliases import framework_names

NAME = "known_good"


@dataclass(frozen=True)
class LoadedFacts:
    """The file, checked."""

    facts: KnownGood
    digest: str
    path: str


def is_known_good(name_or_path: str) -> bool:
    """Whether that is the shipped file, or a file of its name."""
    return name_or_path == NAME or Path(name_or_path).name == f"{NAME}.yaml"


def load_known_good(name_or_path: str = NAME) -> LoadedFacts:
    """Load and check the file.

    Raises:
        UserError: it can't be read, or names what does not exist; the text lists every problem.
    """
    shipped = str(files("firstbad.playbooks") / f"{NAME}.yaml")
    path = shipped if name_or_path == NAME else name_or_path
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"no file `{path}`: expected `{NAME}` or a file of that form") from error
    facts = parse_known_good(raw, path)
    if problems := list(lint_known_good(facts)):
        raise UserError(f"{path}: " + "\n  ".join(problems))
    return LoadedFacts(facts, "sha256:" + hashlib.sha256(raw).hexdigest()[:16], path)


def lint_known_good(facts: KnownGood) -> Iterator[str]:
    """Every problem of the file against the causes and frameworks that exist."""
    for kind, entries in (("faults", facts.faults), ("statements", facts.statements)):
        for name, times in Counter(entry.id for entry in entries).items():
            if times > 1:
                yield f"{kind}: `{name}` stands {times} times"
    for fault in facts.faults:
        if fault.cause not in causes():
            yield f"fault `{fault.id}`: no cause `{fault.cause}`{_near(fault.cause, causes())}"
    known = list(framework_names())
    for where, package in (
        *((f"fault `{f.id}`", f.wraps or f.package) for f in facts.faults),
        *((f"statement `{s.id}`", s.package) for s in facts.statements),
        *((f"meaning of `{m.key}`", m.package) for m in facts.meanings),
        *((f"arrival of `{a.setting}`", a.package) for a in facts.arrivals),
    ):
        if package not in known:
            yield f"{where}: no framework `{package}`{_near(package, known)}"
    for one, other in combinations(facts.meanings, 2):
        if (one.package, one.key) == (other.package, other.key) and _overlap(one, other):
            yield f"meaning of `{one.key}` in {one.package}: two entries hold for one version"


def known_good_schema() -> str:
    """JSON Schema of the file, with the ids of causes, for editors."""
    schema = KnownGood.model_json_schema()
    schema["$defs"]["Fault"]["properties"]["cause"]["enum"] = list(causes())
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def _overlap(one: Meaning, other: Meaning) -> bool:
    """Whether some version lies in both ranges, under settings that both may have.

    Reports are points, and never overlap a range.
    """
    if any(_exclude(wanted, other.when.get(name)) for name, wanted in one.when.items()):
        return False
    first, second = one.versions, other.versions
    if first.reported_in or second.reported_in:
        return bool(set(first.reported_in) & set(second.reported_in))
    return _starts_before_end(first, second) and _starts_before_end(second, first)


def _exclude(wanted: object, other: object) -> bool:
    """Whether two lists of texts share none."""
    lists = isinstance(wanted, tuple) and isinstance(other, tuple)
    return lists and set(wanted).isdisjoint(other)  # type: ignore[call-overload]


def _starts_before_end(one: Versions, other: Versions) -> bool:
    return not (one.since and other.before and Version(one.since) >= Version(other.before))


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=3, cutoff=0.4)
    return f"; nearest: {', '.join(near)}" if near else ""
