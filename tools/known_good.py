"""`known_good.yaml`: what is known of framework versions, each statement with its source.

Three kinds: faults that a version had, what a version does that a weaker check may rest on, and
what a metric of one name means from version to version.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, get_args

from packaging.version import Version
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from firstbad.tools.run import Config, Run
from firstbad.tools.strict_yaml import Strict, read_strict
from firstbad.tools.versions import Known, is_one_of, parsed, reaches

COMPARED = re.compile(r"(==|!=|<=|>=|<|>) (?:\$([\w.]+)|(-?\d+(?:\.\d+)?(?:e-?\d+)?))")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Fact = Literal["engine_logprobs_unused", "old_logprobs_recomputed", "ratio_one_by_construction"]
"""What a statement may say of a run: the names of a tool's metrics."""
FACTS: tuple[Fact, ...] = get_args(Fact)


def _a_version(text: object) -> str:
    if not isinstance(text, str) or parsed(text) is None or Version(text).is_prerelease:
        raise ValueError(f"expected a released version as text, such as '1.9.1', found {text!r}")
    return text


def _a_condition(value: object) -> object:
    if isinstance(value, str) and value != "set" and not COMPARED.fullmatch(value):
        raise ValueError(
            "expected true, false, `set`, a list of texts, or a comparison such as `> 1` or "
            f"`!= $other_setting`, found {value!r}"
        )
    return value


VersionText = Annotated[str, BeforeValidator(_a_version)]
Condition = Annotated[bool | str | tuple[str, ...], AfterValidator(_a_condition)]
Conditions = dict[str, Condition]
"""Setting -> what it must be: true or false, one of some texts, `set`, or a comparison with a
number or with another setting."""
Id = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Package = Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
Sentence = Annotated[str, Field(min_length=12, max_length=320, pattern=r"^[^.\n][^\n]*[^.\s]$")]
"""One sentence without its final stop."""
Thread = Annotated[str, Field(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+$")]
Stated = Annotated[str, Field(pattern=r"^(https://github\.com/\S+|released source of .+)$")]


class Versions(Strict):
    """A range of versions, or those that a report names."""

    since: VersionText | None = None
    """First version; empty: all up to `before`."""
    before: VersionText | None = None
    """First version that no longer does it; empty: all from `since` on."""
    reported_in: tuple[VersionText, ...] = ()
    """Versions that a report names, where nobody says when it began or ended: `0.15` holds
    0.15.2."""

    @model_validator(mode="after")
    def _says_something(self) -> Versions:
        if bool(self.reported_in) == bool(self.since or self.before):
            raise ValueError("expected `since`, `before` or both, or else `reported_in`")
        if self.since and self.before and Version(self.since) >= Version(self.before):
            raise ValueError(f"`since` {self.since} is not before `before` {self.before}")
        return self

    def hold(self, known: Known) -> bool | None:
        """Whether a version lies inside; None where that cannot be told."""
        if self.reported_in:
            return is_one_of(known, self.reported_in)
        inside = [reaches(known, self.since)] if self.since else []
        if self.before:
            after = reaches(known, self.before)
            inside.append(None if after is None else not after)
        return False if False in inside else None if None in inside else True


class Fault(Strict):
    """A fault that versions of a framework had."""

    id: Id
    package: Package
    """Name under which the package is installed."""
    wraps: Package | None = None
    """The framework that it trains with, where the package is another; its version must be on
    file."""
    versions: Versions
    cause: str
    """Id from the closed list of causes."""
    bites_if: Conditions = Field(min_length=1)
    """Settings under which it does harm; all must hold."""
    says: Sentence
    source: Thread


class Statement(Strict):
    """What a version does, on which a check of strength `declared` may rest."""

    id: Id
    package: Package
    versions: Versions
    when: Conditions = {}
    states: Fact
    says: Sentence
    source: Stated


class Meaning(Strict):
    """What a logged key means in these versions."""

    package: Package
    key: str
    """As the framework writes it, without a tracker's prefix."""
    versions: Versions
    when: Conditions = {}
    means: Sentence
    source: Stated
    tell_if_unknown: bool = False
    """Where the version is not known, this is told as one of the alternatives."""


class Arrival(Strict):
    """A setting that came with a version: where it stands, the version is no earlier."""

    package: Package
    setting: str
    since: VersionText
    """First version that has the setting."""


class KnownGood(Strict):
    """The whole file."""

    name: Literal["known_good"]
    title: str
    faults: tuple[Fault, ...] = ()
    statements: tuple[Statement, ...] = ()
    meanings: tuple[Meaning, ...] = ()
    arrivals: tuple[Arrival, ...] = ()


def parse_known_good(raw: bytes, path: str) -> KnownGood:
    """Read the file's YAML.

    Raises:
        UserError: not YAML, or not of this form.
    """
    return read_strict(raw, path, KnownGood)


@cache
def known_good() -> KnownGood:
    """The facts that ship with this version."""
    file = files("firstbad.playbooks") / "known_good.yaml"
    return parse_known_good(file.read_bytes(), "known_good.yaml")


def version_of(run: Run, package: str) -> Known:
    """What the run's files tell of a package's version: it, or the least that settings imply."""
    return known_version(run.versions.get(package), run.config, package)


def known_version(exact: str | None, config: Config, package: str) -> Known:
    """The version, or else the latest of those with which a setting came that stands there."""
    come = [
        a.since
        for a in known_good().arrivals
        if a.package == package and config.of_trainer and a.setting in config.values
    ]
    return Known(exact, max(come, key=Version, default=None))


def all_met(conditions: Conditions, values: Mapping[str, object]) -> bool | None:
    """Whether settings meet all conditions; None where one of them is not stated."""
    met = [_met(name, wanted, values) for name, wanted in conditions.items()]
    return False if False in met else None if None in met else True


def _met(name: str, wanted: Condition, values: Mapping[str, object]) -> bool | None:
    value = values.get(name)
    if value is None:
        return None
    if wanted == "set":
        return True
    if isinstance(wanted, bool):
        return value is wanted if isinstance(value, bool) else None
    if isinstance(wanted, tuple):
        return value in wanted if isinstance(value, str) else None
    compared = COMPARED.fullmatch(wanted)
    assert compared is not None  # refused at load
    other = values.get(compared[2]) if compared[2] else float(compared[3])
    if not (_is_number(value) and _is_number(other)):
        return None
    return _OPERATORS[compared[1]](value, other)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
