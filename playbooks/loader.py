"""Load playbooks and refuse, by name, whatever does not fit the tools and causes that exist."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from firstbad.playbooks.causes import causes
from firstbad.playbooks.model import Bounds, Call, Check, Claim, Layer, Playbook, Setting
from firstbad.playbooks.results import PlaybookRef
from firstbad.tools.errors import UserError
from firstbad.tools.readers.aliases import framework_names
from firstbad.tools.registry import Tool, tools
from firstbad.tools.strict_yaml import read_strict

REFERENCE = re.compile(r"^\$(?:(?:noticed|finding)_step|([a-z0-9_]+)\.([a-z0-9_]+))$")
COMPLAINT = "complaint"
"""`$complaint.eval`: whether what is complained of is about `eval`, as its symptom is named."""
PLACE = re.compile(r"\{([a-z0-9_]+)\.([a-z0-9_]+)(?::[^}]*)?\}")
NO_PLAYBOOK = ("causes", "known_good")
"""Files of the folder that hold facts for playbooks."""
QUOTE = "quote"
"""In a sentence's place: what the run's own log says, rather than a number."""


@dataclass(frozen=True)
class Loaded:
    """A playbook that has been checked against the registered tools and causes."""

    playbook: Playbook
    ref: PlaybookRef
    path: str


def call_parts(call: Call) -> tuple[str, dict[str, Setting]]:
    """Tool name and settings of an evidence line."""
    if isinstance(call, str):
        return call, {}
    ((name, settings),) = call.items()
    return name, dict(settings)


def builtin(name: str) -> str:
    """Path of a shipped playbook."""
    return str(files("firstbad.playbooks") / f"{name}.yaml")


def shipped() -> tuple[str, ...]:
    """Names of the shipped playbooks."""
    folder = files("firstbad.playbooks")
    named = (p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))
    return tuple(sorted(n for n in named if n not in NO_PLAYBOOK))


@cache
def load(name_or_path: str = "crash") -> Loaded:
    """Load and check a playbook by shipped name or path.

    Raises:
        UserError: the file can't be read, or something in it names what does not exist; the text
            lists every problem with its place.
    """
    path = builtin(name_or_path) if name_or_path in shipped() else name_or_path
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"no playbook `{name_or_path}`: expected a file, or one of {', '.join(shipped())}"
        ) from error
    playbook = parse(raw, path, shipped=name_or_path in shipped())
    problems = list(lint(playbook))
    if problems:
        raise UserError(f"{path}: " + "\n  ".join(problems))
    digest = "sha256:" + hashlib.sha256(raw).hexdigest()[:16]
    known = {Path(builtin(name)).read_bytes() for name in shipped()}
    ref = PlaybookRef(name=playbook.name, digest=digest, shipped=raw in known)
    return Loaded(playbook, ref, path)


def parse(raw: bytes, path: str, *, shipped: bool = False) -> Playbook:
    """Read a playbook's YAML; one that is `shipped` with this package is parsed once.

    Raises:
        UserError: not YAML, or not of the form of `firstbad.playbooks.model`.
    """
    return read_strict(raw, path, Playbook, shipped=shipped)


Aliases = dict[str, Tool | None]
"""Evidence by alias; None where its line is wrong itself: what names it is not told again."""


def lint(playbook: Playbook) -> Iterator[str]:
    """Every problem of a playbook against the tools, measures, causes and layers that exist.

    One line each: what is wrong in several places for one reason is told once.
    """
    told: dict[str, str] = {}
    places: dict[str, set[str]] = {}
    for where, problem in _problems(playbook):
        root = problem.partition("; ")[0]  # what there is instead differs from place to place
        told.setdefault(root, f"{where}: {problem}")
        places.setdefault(root, set()).add(where)
    for root, line in told.items():
        others = len(places[root]) - 1
        yield line + (f" (and {others} other place{'s' if others > 1 else ''})" if others else "")


def _problems(playbook: Playbook) -> Iterator[tuple[str, str]]:
    """Places and what is wrong there."""
    known = tools()
    order: list[str] = []
    aliases: Aliases = {}
    for layer in playbook.layers:
        for check in layer.checks:
            where = f"layer `{layer.id}`, check `{check.id}`"
            if f"{layer.id}.{check.id}" in order:
                yield where, "the layer has a check of that name already"
            yield from ((where, p) for p in _check_calls(check, known, aliases))
            yield from ((where, p) for p in _check_names(check, aliases, order, layer))
            order.append(f"{layer.id}.{check.id}")
        if layer.id in order:
            yield f"layer `{layer.id}`", "there is a layer of that name already"
        order.append(layer.id)
    for each in playbook.compared:
        tool, problems = _called(each.call, known, aliases)
        aliases[each.alias] = tool
        yield from (("compared", p) for p in problems)
    yield from (("top", p) for p in _check_top(playbook, aliases, order))


def _check_calls(check: Check, known: Mapping[str, Tool], aliases: Aliases) -> Iterator[str]:
    for alias, call in check.evidence.items():
        found, problems = _called(call, known, aliases)
        before = aliases.get(alias, found)
        if not problems and before is not None and before is not found:
            problems = [f"alias `{alias}` already names `{before.name}`"]
            found = None
        aliases[alias] = found
        yield from problems


def _called(
    call: Call, known: Mapping[str, Tool], aliases: Aliases
) -> tuple[Tool | None, list[str]]:
    """The tool of an evidence line, and what is wrong with the line."""
    if isinstance(call, dict) and len(call) != 1:
        return None, [f"evidence names {len(call)} tools; one is expected: {', '.join(call)}"]
    name, settings = call_parts(call)
    if name not in known:
        return None, [f"no tool `{name}`{_offer(name, known)}"]
    problems = []
    fixed = {}
    fields = known[name].settings.model_fields
    for key, value in settings.items():
        reference = REFERENCE.match(value) if isinstance(value, str) else None
        if key not in fields:
            problems.append(f"`{name}` has no setting `{key}`{_offer(key, fields)}")
        elif reference is None:
            fixed[key] = value
        elif reference[1] not in (None, COMPLAINT):
            problems += _measure(f"{reference[1]}.{reference[2]}", aliases)
    try:
        known[name].settings(**fixed)
    except ValidationError as error:
        problems.append(f"`{name}`: {error.errors()[0]['msg'].lower()}")
    return known[name], problems


def _check_names(check: Check, aliases: Aliases, order: list[str], layer: Layer) -> Iterator[str]:
    for bounds in _bounds(check):
        for measure in bounds:
            yield from _measure(measure, aliases)
    for text in _texts(check):
        yield from _places(text, aliases)
    for pointer in check.points_to:
        if pointer.cause not in causes():
            yield f"no cause `{pointer.cause}`{_offer(pointer.cause, causes())}"
        for alias in (pointer.onset,) if isinstance(pointer.onset, str) else pointer.onset:
            if alias not in aliases:
                yield f"no evidence `{alias}` so far{_offer(alias, aliases)}"
    for ask in check.request if isinstance(check.request, tuple) else ():
        for measure in (*ask.unless, *ask.in_every_step):
            yield from _measure(measure, aliases)
        if isinstance(ask.need, dict) and "default" not in ask.need:
            yield f"request `{next(iter(ask.need), '')}` has no `default` for other frameworks"
        frameworks = {"default", "record", *framework_names()}
        for name in ask.need if isinstance(ask.need, dict) else ():
            if name not in frameworks:
                yield f"request: no framework `{name}`{_offer(name, frameworks)}"
    for name in (*check.depends_on, *check.voided_by):
        if name not in order:
            yield f"depends on `{name}`, which does not come before it{_offer(name, order)}"
    can_fail = any(a.fail_if for a in check.gate)
    if can_fail and not check.points_to and layer.id != "window":
        yield "it can fail and points to no cause"


def _texts(check: Check) -> Iterator[str]:
    """Sentences that numbers are put into."""
    for pointer in check.points_to:
        yield from (pointer.claim, *pointer.ruled_out)
        yield from (pointer.remedy, pointer.verify, pointer.refuted_by)
    yield from (note.say for note in check.notes)


def _check_top(playbook: Playbook, aliases: Aliases, order: list[str]) -> Iterator[str]:
    tops = [playbook.outcome_holds, *(r.when for r in playbook.window)]
    tops += [s.when for s in playbook.symptoms]
    tops += [b for c in playbook.complaints for b in _claimed(c)]
    tops += [change.when for change in playbook.unexplained]
    tops += [each.when for each in playbook.ended]
    tops += [rule.when for rule in playbook.inapplicable]
    notes = [*playbook.about_step]
    notes += [note for c in playbook.complaints for note in (*c.answers, *c.beside)]
    tops += [note.when for note in notes]
    for bounds in tops:
        for measure in bounds:
            yield from _measure(measure, aliases)
    for link in playbook.leads_to:
        if not any(link.names(cause) for cause in causes()):
            yield f"leads_to: no cause `{link.cause}`{_offer(link.cause, causes())}"
        yield from (
            f"leads_to: no layer `{t}`{_offer(t, order)}" for t in link.to if t not in order
        )
    for rule in playbook.inapplicable:
        yield from (
            f"inapplicable: no check `{name}`{_offer(name, order)}"
            for name in rule.checks
            if name not in order
        )
    for decision in playbook.decisions:
        yield from (
            f"decisions: no cause `{c}`{_offer(c, causes())}"
            for c in decision.causes
            if c not in causes()
        )
        yield from (
            f"decisions: no check `{name}`{_offer(name, order)}"
            for name in decision.found_by
            if name not in order
        )
    for claim in playbook.complaints:
        yield from (
            f"complaints: no check `{name}`{_offer(name, order)}"
            for name in claim.answered_by
            if name not in order
        )
        for measure in filter(None, (claim.measure, claim.whole)):
            for end in ("before", "after", "z"):
                yield from _measure(f"{measure}_{end}", aliases)
        if claim.begins_at:
            yield from _measure(claim.begins_at, aliases)
        yield from (
            f"complaints: no cause `{c}`{_offer(c, causes())}"
            for c in claim.is_cause
            if c not in causes()
        )
    texts = [note.say for note in notes] + [change.say for change in playbook.unexplained]
    texts += [text for each in playbook.ended for text in (each.say, each.headline)]
    for text in texts + [rule.because for rule in playbook.inapplicable]:
        yield from _places(text, aliases)
    for symptom in playbook.symptoms:
        yield from (
            f"symptoms: no layer `{s}`{_offer(s, order)}"
            for s in symptom.suspects
            if s not in order
        )


def _claimed(claim: Claim) -> tuple[Bounds, ...]:
    return (
        claim.contradicted_if,
        claim.partly_if,
        claim.true_if,
        claim.whole_true_if,
        claim.open_if,
    )


def _bounds(check: Check) -> Iterator[Bounds]:
    for alternative in check.gate:
        yield from (alternative.needs, alternative.fail_if, alternative.doubt_if)
    for pointer in check.points_to:
        yield from (pointer.when, pointer.contradicted_if, *pointer.ruled_out.values())
    yield from (note.when for note in check.notes)


def _places(text: str, aliases: Aliases) -> Iterator[str]:
    """What is wrong with the places of a sentence."""
    for alias, name in ((m[1], m[2]) for m in PLACE.finditer(text)):
        if name != QUOTE or alias not in aliases:
            yield from _measure(f"{alias}.{name}", aliases)


def _measure(measure: str, aliases: Aliases) -> Iterator[str]:
    alias, name = measure.split(".", 1)
    if alias not in aliases:
        yield f"no evidence `{alias}` so far{_offer(alias, aliases)}"
    elif (tool := aliases[alias]) is not None and name not in tool.metrics.model_fields:
        fields = tool.metrics.model_fields
        yield f"`{measure}`: `{tool.name}` does not measure `{name}`{_offer(name, fields)}"


def _offer(name: str, known: Any) -> str:
    near = get_close_matches(name, list(known), n=3, cutoff=0.4)
    return (
        f"; nearest: {', '.join(near)}" if near else f"; there are: {', '.join(list(known)[:12])}"
    )


def json_schema() -> str:
    """JSON Schema of playbook files, with the tools' names, for editors."""
    schema = Playbook.model_json_schema()
    (calls,) = schema["$defs"]["Check"]["properties"]["evidence"]["patternProperties"].values()
    calls["anyOf"][0]["enum"] = list(tools())
    pointer = schema["$defs"]["Pointer"]["properties"]["cause"]
    pointer["enum"] = list(causes())
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
