"""Framework keys and canonical names: the table of `aliases.yaml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Alias:
    """What a key means."""

    name: str
    """Canonical name."""
    unit: str = ""
    scale: float = 1.0
    ln: bool = False
    """Whether the value is the exponential of what is meant."""
    note: str = ""
    rank: int = 0
    """Place in the table: of two keys for one name the earlier is used."""


@dataclass(frozen=True)
class _Keys:
    exact: Mapping[str, Alias]
    patterns: tuple[tuple[re.Pattern[str], Alias], ...]
    refused: frozenset[str] = frozenset()
    """Keys that have another meaning here than elsewhere, and no canonical name."""

    def find(self, key: str) -> Alias | None:
        if key in self.exact:
            return self.exact[key]
        for pattern, alias in self.patterns:
            if match := pattern.fullmatch(key):
                name = alias.name.replace("<f>", match[1])
                return Alias(name, alias.unit, alias.scale, alias.ln, alias.note, alias.rank)
        return None


@dataclass(frozen=True)
class _Table:
    marks: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, _Keys]
    everyone: _Keys
    """Keys that every framework which uses them means alike."""
    anybody: _Keys
    tails: Mapping[str, Alias]
    sums: Mapping[str, Mapping[str, tuple[str, ...]]]
    units: Mapping[str, str]


def framework_of(keys: Iterable[str]) -> str:
    """The framework whose own keys are among these, or `unknown`."""
    bare = {_strip_train(key) for key in keys}
    found = {name: sum(mark in bare for mark in marks) for name, marks in _table().marks.items()}
    # An AsyncGRPO or ms-swift run writes the marks of TRL too: the longer list of own marks wins.
    for special in ("trl-async", "ms-swift", "roll"):
        if found[special]:
            return special
    best = max(found, key=lambda name: found[name])
    return best if found[best] else UNKNOWN


def alias_of(key: str, framework: str) -> Alias | None:
    """What a key means in a framework, or None; `eval_<key>` and `eval/<key>` become `eval/...`."""
    table = _table()
    for asked, before in _spellings(key):
        own = table.keys.get(framework)
        if own and asked in own.refused:
            return None
        found = own.find(asked) if own else None
        found = found or table.anybody.find(asked) or table.tails.get(asked.rpartition("/")[2])
        if found is None and own is None:
            found = table.everyone.find(asked)
        if found:
            return Alias(
                before + found.name, found.unit, found.scale, found.ln, found.note, found.rank
            )
    return None


def sums_of(framework: str) -> Mapping[str, tuple[str, ...]]:
    """Canonical names that are the sum of several keys of a framework."""
    return _table().sums.get(framework, {})


def unit_of(name: str) -> str:
    """The unit of a canonical name."""
    units = _table().units
    bare = name.removeprefix("eval/")
    return units.get(bare) or units.get(bare.partition("/")[0] + "/<f>", "")


def framework_names() -> Collection[str]:
    """Every framework whose keys are known."""
    return _table().keys.keys()


def canonical_names() -> Collection[str]:
    """Every canonical name; `<f>` stands for the name of a reward function."""
    return _table().units.keys()


def _strip_train(key: str) -> str:
    return key.removeprefix("train/")


def _spellings(key: str) -> list[tuple[str, str]]:
    """Ways to look a key up, each with what goes before the name that is found."""
    for start in ("eval_", "eval/"):
        if key.startswith(start):
            return [(key[len(start) :], "eval/")]
    bare = _strip_train(key)
    return [(key, "")] if bare == key else [(key, ""), (bare, "")]


@cache
def _table() -> _Table:
    import yaml

    text = files(__package__).joinpath("aliases.yaml").read_text("utf-8")
    # The C parser takes a tenth of the time; both are safe loaders.
    raw = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    units = raw["units"]
    keys = {name: _keys(entry["keys"], units) for name, entry in raw["frameworks"].items()}
    return _Table(
        marks={name: tuple(entry["marks"]) for name, entry in raw["frameworks"].items()},
        keys=keys,
        everyone=_agreed(keys.values()),
        anybody=_keys(raw["any"], units, rank=1000),
        tails=_keys(raw["tails"], units, rank=2000).exact,
        sums={
            name: {to: tuple(parts) for to, parts in entry.items()}
            for name, entry in raw["sums"].items()
        },
        units=units,
    )


def _keys(raw: Mapping[str, Any], units: Mapping[str, str], rank: int = 0) -> _Keys:
    exact: dict[str, Alias] = {}
    patterns: list[tuple[re.Pattern[str], Alias]] = []
    for place, (key, value) in enumerate(raw.items(), rank):
        if value is None:
            continue
        entry = value if isinstance(value, dict) else {"to": value}
        alias = Alias(
            name=entry["to"],
            unit=units[entry["to"]],
            scale=float(entry.get("scale", 1.0)),
            ln=bool(entry.get("ln", False)),
            note=entry.get("note", ""),
            rank=place,
        )
        if "<f>" in key:
            before, after = (re.escape(part) for part in key.split("<f>"))
            patterns.append((re.compile(f"{before}(.+){after}"), alias))
        else:
            exact[key] = alias
    return _Keys(exact, tuple(patterns), frozenset(k for k, v in raw.items() if v is None))


def _agreed(tables: Iterable[_Keys]) -> _Keys:
    """Keys of all frameworks, without those that two of them mean differently."""
    exact: dict[str, Alias] = {}
    refused: set[str] = set()
    patterns: list[tuple[re.Pattern[str], Alias]] = []
    for table in tables:
        refused |= table.refused
        for key, alias in table.exact.items():
            if exact.setdefault(key, alias).name != alias.name:
                refused.add(key)
        patterns.extend(table.patterns)
    return _Keys({k: a for k, a in exact.items() if k not in refused}, tuple(patterns))
