"""What stays open: evidence to get, what was not checked, what passed on weak evidence."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from firstbad.agent.memo.text import LONGEST, brief
from firstbad.agent.memo.words import Row, names
from firstbad.agent.remarks import BESIDE, LONE, Remark, folder_command
from firstbad.playbooks.results import NEW_RUN, NotChecked, Request, Verdict

NAMED = 5
"""Most places that are named one by one."""
WEAK = ("differential", "proxy", "declared")
"""Strengths that leave something open."""


@dataclass(frozen=True)
class RequestView:
    """Evidence to get; the way to get it is a shell command, or prose with code in backticks."""

    layers: tuple[str, ...]
    """Layers that ask for it."""
    need: str
    commands: tuple[str, ...]
    advice: str
    decides: str


def unread(verdict: Verdict) -> str:
    """What was not checked: a layer by its name when nothing in it was, else the checks."""
    apart = {f"{n.layer}.{n.check}" for n in verdict.not_checked if n.kind != "missing"}
    waiting, undecided = _left(verdict, "not_reached"), _left(verdict, "inconclusive")
    undecided = [place for place in undecided if place not in apart]
    broken = [f"{c.layer}.{c.check}" for c in verdict.checks if c.reason == "tool_error"]
    undecided = [place for place in undecided if place not in broken]
    waits_for = dict.fromkeys(name for c in verdict.checks for name in c.blocked_by)
    told = []
    if waiting:
        told.append(f"{_counted(waiting)} (waiting for {names(list(waits_for))})")
    if broken:
        told.append(f"{_counted(broken)} (the tool broke)")
    if undecided:
        told.append(f"{_counted(undecided)} (no or too little data)")
    walked = {(c.layer, c.check) for c in verdict.checks}
    layers = {layer for layer, _ in walked}
    if unbuilt := [
        f"{n.layer}.{n.check}" if n.layer in layers else n.layer
        for n in verdict.not_checked
        if (n.layer, n.check) not in walked
    ]:
        told.append(f"{names(list(dict.fromkeys(unbuilt)))} (not built in this version)")
    return "; ".join(told) or "nothing that the playbook asks for was left out"


def set_apart(items: Sequence[NotChecked]) -> Iterable[Row]:
    """Checks that no evidence is missing for, each kind in a line."""
    if why := [n.why for n in items if n.kind == "not_applicable"]:
        checks = "1 check" if len(why) == 1 else f"{len(why)} checks"
        yield Row("not applicable", f"{checks}: {'; '.join(dict.fromkeys(why))}")
    if optional := [f"{n.layer}.{n.check}" for n in items if n.kind == "optional"]:
        checks = _counted(optional).replace("checks or layers", "checks")
        yield Row("optional", f"{checks} (no data, and the layers do without)")


def _counted(places: Sequence[str]) -> str:
    """Layers and checks by name; of many, the layers and how many checks. The memo lists them."""
    if len(places) <= NAMED:
        return names(places)
    layers = dict.fromkeys(place.partition(".")[0] for place in places)
    return f"{len(places)} checks or layers in {names(list(layers))}"


def _left(verdict: Verdict, outcome: str) -> list[str]:
    left: list[str] = []
    for layer in verdict.layers:
        checks = [c for c in verdict.checks if c.layer == layer.id]
        found = [f"{c.layer}.{c.check}" for c in checks if c.outcome == outcome]
        left += [layer.id] if found and len(found) == len(checks) else found
    return left


def requests_to_show(asked: Iterable[Request]) -> Iterable[RequestView]:
    """Evidence to get, and how; what several layers need is asked for once.

    A `command` with backticks is prose, any other a command.
    """
    by_need: dict[str, list[Request]] = {}
    for each in asked:
        by_need.setdefault(each.need, []).append(each)
    for need, same in by_need.items():
        layers = tuple(dict.fromkeys(r.layer for r in same))
        decides = dict.fromkeys(
            r.decides if len(layers) == 1 else f"{r.decides} (`{r.layer}`)" for r in same
        )
        how = dict.fromkeys(r.command for r in same if r.command)
        yield RequestView(
            layers=layers,
            need=need,
            commands=tuple(brief(c, LONGEST) for c in how if "`" not in c),
            advice="; ".join(c for c in how if "`" in c),
            decides="; ".join(decides),
        )


def how_to_go_on(verdict: Verdict, reading: Sequence[Remark]) -> str:
    """How to go on where no cause is known; for a lone file by its folder, where evidence goes."""
    if verdict.outcome != "undetermined" or any(r.code == BESIDE for r in reading):
        return ""
    if not verdict.requests:
        return ""
    new = all(NEW_RUN in request.command for request in verdict.requests)
    if not new and any(r.code == LONE for r in reading):
        return folder_command(verdict.run)
    return f"firstbad investigate {NEW_RUN if new else shlex.quote(verdict.run)}"


def not_checked(items: Sequence[NotChecked]) -> Iterable[Row]:
    """What was not read, checks with the same reason in one row."""
    by_why: dict[str, list[str]] = {}
    kinds = ("missing", "optional", "not_applicable")
    for item in sorted(items, key=lambda item: kinds.index(item.kind)):
        needs = f". Would decide: {item.needs}" if item.needs else ""
        word = "not applicable: " if item.kind == "not_applicable" else ""
        by_why.setdefault(word + item.why + needs, []).append(f"{item.layer}.{item.check}")
    return (Row(names(places), why) for why, places in by_why.items())


def weak_passes(verdict: Verdict) -> Iterable[Row]:
    """Passes by less than direct evidence, with what they do not exclude."""
    for result in verdict.layers:
        if result.outcome != "pass" or result.strength not in WEAK:
            continue
        open_ = dict.fromkeys(
            c.excludes_not for c in verdict.checks if c.layer == result.id and c.excludes_not
        )
        what = "; ".join(open_) or "the playbook does not say what this leaves open"
        yield Row(f"{result.id} ({result.strength})", what)
