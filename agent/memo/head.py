"""The first page: what happened, what to do now, what to know before acting.

Terminal, Markdown and HTML say it in these words and in this order.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from firstbad.agent.memo.text import LONGEST, brief, one_line
from firstbad.agent.memo.words import Row, names, onset_text, step
from firstbad.agent.remarks import BESIDE, LEFT_OUT, Remark
from firstbad.playbooks.causes import causes
from firstbad.playbooks.checkpoints import weights_alone
from firstbad.playbooks.model import Cause
from firstbad.playbooks.results import (
    NEW_RUN,
    Finding,
    LeastBad,
    NotChecked,
    Onset,
    Request,
    Verdict,
)
from firstbad.tools.evidence import Evidence
from firstbad.tools.numbers import percent

HEADLINE, COMPLAINT, ALSO = 400, 240, 240
"""Longest texts: the headline, what the person said, another finding."""
CELL = 80
"""Most characters of one cell of the example."""
TICK, QUOTE = "`", "'"
"""A cell stands between ticks: its own ones become quotes."""
NAMED = 5
"""Most places that are named one by one."""
WORDS = {"incident": "INCIDENT", "healthy": "HEALTHY", "undetermined": "UNDETERMINED"}
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


@dataclass(frozen=True)
class FirstPage:
    """The first page, every text written out."""

    outcome: str
    word: str
    headline: str
    cause: str
    layer: str
    wrong: str
    complaint: str
    answers: tuple[str, ...]
    """What the record says to the complaint."""
    reading: tuple[Row, ...]
    """What the files lack or were cut at: read before the verdict is believed."""
    facts: tuple[Row, ...]
    actions: tuple[Row, ...]
    requests: tuple[RequestView, ...]
    then: str
    """The command that reads the run anew once the evidence is there; empty where none does."""
    caveats: tuple[Row, ...]
    unread: str
    """What was not checked, by name."""
    apart: tuple[Row, ...]
    """What does not apply, and what the layers do without: no missing evidence."""
    not_checked: tuple[Row, ...]
    """What was not checked, with the reasons."""
    notes: tuple[str, ...]
    weak: tuple[Row, ...]


FELL_Z = -2.0
"""Standard errors from which the reward around a step counts as lower, as for the complaint."""


def first_page(
    verdict: Verdict, evidence: Mapping[str, Evidence], reading: Sequence[Remark] = ()
) -> FirstPage:
    """The first page of a verdict; `evidence` tells how far the run was seen."""
    leading = verdict.leading
    cause = causes().get(leading.cause) if leading else None
    return FirstPage(
        outcome=verdict.outcome,
        word=WORDS[verdict.outcome],
        headline=brief(verdict.headline, HEADLINE),
        cause=leading.cause if leading else "",
        layer=leading.layer if leading else "",
        wrong=cause.wrong if cause else "",
        complaint=brief(verdict.complaint, COMPLAINT),
        answers=verdict.answers,
        reading=tuple(
            Row("reading", brief(r.text, LONGEST)) for r in reading if r.code in LEFT_OUT
        ),
        facts=tuple(_facts(verdict, leading)),
        actions=tuple(_actions(verdict, leading, cause, evidence)),
        requests=tuple(_requests(verdict.requests)),
        then=_then(verdict, reading),
        caveats=tuple(_caveats(verdict, leading, cause, evidence)),
        unread=_unread(verdict),
        apart=tuple(_apart(verdict.not_checked)),
        not_checked=tuple(_not_checked(verdict.not_checked)),
        notes=verdict.notes,
        weak=tuple(_weak_passes(verdict)),
    )


def _facts(verdict: Verdict, leading: Finding | None) -> Iterable[Row]:
    """The few figures under the headline."""
    onset = verdict.first_bad
    if leading is not None:
        if onset.from_start:
            yield Row("first bad step", "from the start")
        elif onset.sampled and onset.bracket_start is not None and onset.first_bad is not None:
            yield Row(
                "first bad step", f"after {step(onset.bracket_start)}, by {step(onset.first_bad)}"
            )
        elif onset.sampled and onset.first_bad is not None and onset.last_good is None:
            yield Row("first bad step", f"by {step(onset.first_bad)}")
        else:
            yield Row(
                "first bad step", "not dated" if onset.first_bad is None else step(onset.first_bad)
            )
        if onset.last_bad is not None:
            yield Row("last bad step", step(onset.last_bad))
        good = None if onset.from_start else onset.last_good
        yield Row("last good", "none" if good is None else step(good))
    else:
        none = "none: no signal left its band" if verdict.window == "steady" else "not dated"
        yield Row("first change", none if onset.first_bad is None else step(onset.first_bad))
    yield Row(
        "you noticed",
        "not said" if verdict.noticed_step is None else step(verdict.noticed_step),
    )
    if leading is not None:
        yield Row("confidence", leading.confidence)
    for book in verdict.playbooks:
        if not book.shipped:
            yield Row(
                "playbook", f"`{book.name}`, {book.digest}: not the one that ships with firstbad"
            )
    if leading is not None or verdict.conditional_on:
        yield Row("conditional on", ", ".join(verdict.conditional_on) or "nothing")


def _actions(
    verdict: Verdict,
    leading: Finding | None,
    cause: Cause | None,
    evidence: Mapping[str, Evidence],
) -> Iterable[Row]:
    """The table `do now`."""
    if verdict.outcome == "undetermined":
        yield Row("stop or go on", _stop_or_go_on(verdict, evidence))
        yield from (Row("suspects", text) for text in verdict.symptoms)
    if leading is None:
        return
    spoiled = verdict.first_spoiled
    if spoiled is None:
        yield Row(
            "stop", "not for the weights' sake: no step spoils them, any checkpoint can be used"
        )
    else:
        onset = verdict.first_bad if spoiled is leading else spoiled.first_bad
        yield Row("stop", _stop(verdict, onset, evidence) + _other(leading, spoiled))
    label = {"fixes": "fix", "dilutes": "only dilutes", "experiment": "experiment"}
    if remedy := leading.remedy or (cause.remedy if cause else ""):
        yield Row(label[leading.remedy_kind], remedy)
    if spoiled is None:
        yield Row("resume", _go_on(verdict))
    else:
        # "unclear": whether to go back at all is said under `roll back`, and decides first
        open_choice = spoiled.weights == "unclear" and leading.rollback and not onset.from_start
        yield Row("resume", ("if you go back, " if open_choice else "") + _resume(verdict, onset))
    started_over = spoiled is not None and onset.from_start
    if leading.rollback and spoiled in (leading, None) and not started_over:
        yield Row("roll back", leading.rollback)
    if verify := leading.verify or (cause.verify if cause else ""):
        yield Row("verify", verify)
    if dilutes := leading.dilutes or (cause.dilutes if cause else ""):
        yield Row("only dilutes", dilutes)
    if leading.log_next:
        yield Row("log next time", leading.log_next)
    for asked in _requests(verdict.requests):
        yield Row(f"{asked.layers[0]} needs", f"{asked.need}; decides: {asked.decides}")


def _other(leading: Finding, spoiled: Finding) -> str:
    """That another finding is what a checkpoint must lie before; empty where the leading one is."""
    if spoiled is leading:
        return ""
    why = "began first"
    if leading.weights == "sound":
        why = "spoils the weights" if spoiled.weights == "spoiled" else "may spoil the weights"
    return f"; `{spoiled.cause}`, also found, {why}"


def _go_on(verdict: Verdict) -> str:
    """From where to go on where no finding spoils the weights."""
    if verdict.resume_from is None:
        return "the weights are sound: go on from the newest checkpoint"
    return f"from `{one_line(verdict.resume_from)}`, the newest checkpoint: the weights are sound"


def _stop_or_go_on(verdict: Verdict, evidence: Mapping[str, Evidence]) -> str:
    """What is known for that decision where no cause is: what moved, and what the outcome did."""
    window = next((e for e in evidence.values() if e.tool == "find_first_bad" and e.metrics), None)
    seen = max((e.window.last for e in evidence.values() if e.window), default=None)
    until = f" by step {step(seen)}, the last one seen" if seen is not None else ""
    if window is None or window.metrics is None:
        return "not decided here: no signal could be read"
    first = verdict.first_bad.first_bad
    since = "" if first is None else f" after the first change at step {step(first)}"
    if window.metrics.get("outcome_fell"):
        left = window.metrics.get("outcome_end_over_best")
        kept = "" if left is None else f", {percent(left)} of what it had gained is left{until}"
        return (
            f"not decided here. The outcome fell{since}{kept}: nothing measured speaks for going "
            "on; keep the checkpoints from before it"
        )
    around = next((e for e in evidence.values() if e.tool == "compare_around" and e.metrics), None)
    fell = [(around.metrics or {}).get(z) for z in ("outcome_z", "reward_z")] if around else []
    if any(isinstance(z, float) and z < FELL_Z for z in fell):
        return (
            "not decided here. The reward is lower after the step that the complaint is held "
            "against: nothing measured speaks for going on; keep the checkpoints from before it"
        )
    if window.metrics.get("is_onset"):
        return (
            f"not decided here. A signal moved at step {step(first)}, the outcome did not fall"
            f"{until}: nothing measured asks for a stop, and nothing clears the run"
            if first is not None
            else f"not decided here. A signal moved, the outcome did not fall{until}"
        )
    return (
        f"not decided here. No signal left its band{until}: nothing measured asks for a stop; a "
        "fault from the first step would look the same"
    )


def _since(onset: Onset) -> str:
    """From where on a checkpoint may carry the fault; empty where that is from the first step."""
    if onset.first_bad is None or onset.from_start:
        return ""
    if onset.sampled and onset.bracket_start is None:
        return ""
    if onset.is_bracket and onset.bracket_start is not None:
        return f" after step {step(onset.bracket_start)}"
    return f" from step {step(onset.first_bad)} on"


def _stop(verdict: Verdict, onset: Onset, evidence: Mapping[str, Evidence]) -> str:
    seen = max((e.window.last for e in evidence.values() if e.window), default=None)
    until = f"; last step seen {step(seen)}" if seen is not None else ""
    if any((e.metrics or {}).get("ended") is True for e in evidence.values()):
        at = f" at step {step(seen)}" if seen is not None else ""
        if verdict.least_bad is not None:  # which of them is left to choose from is said below
            return (
                f"training has ended{at}: every checkpoint there is was saved after the fault began"
            )
        return f"training has ended{at}: use no checkpoint{_since(onset)}"
    if onset.from_start:
        return f"the run, if it still trains: every step carries the fault{until}"
    if onset.first_bad is None:
        return f"the run, if it still trains; the fault could not be dated{until}"
    since = step(onset.first_bad)
    if onset.last_bad is not None:
        return (
            f"the run, if it still trains: steps {since} to {step(onset.last_bad)} carried the "
            f"fault, and all that was saved since holds them{until}"
        )
    if onset.is_bracket and onset.bracket_start is not None:
        return (
            f"the run, if it still trains: every step from {since} on carries the fault, "
            f"those after {step(onset.bracket_start)} may{until}"
        )
    return f"the run, if it still trains: every step from {since} on carries the fault{until}"


def _resume(verdict: Verdict, onset: Onset) -> str:
    if onset.from_start:
        return "start again: there is no good step to go back to"
    at = " before the first bad step"
    if onset.is_bracket and onset.bracket_start is not None:
        at = f" up to step {step(onset.bracket_start)}"
    elif onset.first_bad is not None:
        at = f" before step {step(onset.first_bad)}"
    over = "; ".join(map(one_line, verdict.passed_over))
    none = f"no whole checkpoint{at} was found ({over})" if over else f"no checkpoint{at} was found"
    if verdict.resume_from is None and (weights := weights_alone(verdict.passed_over)) is not None:
        return (
            f"{none}; take the weights of `{one_line(weights)}` alone, whose optimizer then begins "
            "anew, or start again"
        )
    if (least := verdict.least_bad) is not None:
        return (
            f"start again: {none}. If that costs too much, "
            f"`{one_line(least.checkpoint)}` holds the fewest bad updates, {_updates(least, onset)}"
        )
    if verdict.resume_from is None:
        return f"{none}; start again, or from one kept elsewhere"
    last = (
        f"from `{one_line(verdict.resume_from)}`, the last{' whole' if over else ''} checkpoint{at}"
    )
    return f"{last}; passed over: {over}" if over else last


def _updates(least: LeastBad, onset: Onset) -> str:
    """How many bad updates a checkpoint holds, and which where the fault ended before it."""
    most = least.updates_most
    told = step(least.updates) if most is None else f"{least.updates} to {most}"
    if onset.last_bad is None or onset.first_bad is None or onset.is_bracket:
        return told
    return f"{told} (of steps {step(onset.first_bad)} to {step(onset.last_bad)})"


def _caveats(
    verdict: Verdict,
    leading: Finding | None,
    cause: Cause | None,
    evidence: Mapping[str, Evidence],
) -> Iterable[Row]:
    """What a reader must know before acting."""
    for waiver in verdict.waivers:
        yield Row("waived", f"layer `{waiver.layer}`: {waiver.reason}")
    for other in verdict.findings[1:] if leading else verdict.findings:
        yield Row(
            "also found", brief(f"`{other.cause}`, {role(other, verdict)}: {other.claim}", ALSO)
        )
    if leading is None:
        return
    if refuted := leading.refuted_by or (cause.refuted_by if cause else ""):
        yield Row("would refute it", refutation(refuted))
    if leading.experiment:
        yield Row("would settle it", leading.experiment.told())
    if example := _example(leading, evidence):
        yield Row("for example", example)
    if leading.first_bad.signal:
        yield Row("dated by", leading.first_bad.signal + _moved_before(leading.first_bad, evidence))
    reached = {r.id for r in verdict.layers if r.outcome != "not_reached"}
    if leading.independent and leading.layer not in reached:
        place = f"{leading.layer}.{leading.check}"
        yield Row("rests on", f"`{place}`, an independent fact: it needs no layer before it")
    if leading.origin != "gate":
        yield Row("origin", f"proposed by {leading.origin}, not by a gate")


def _example(leading: Finding, evidence: Mapping[str, Evidence]) -> str:
    """One row of what the finding rests on, the first with text from its onset on; else empty."""
    first = leading.first_bad.earliest
    for id_ in leading.supports:
        for table in evidence[id_].tables if id_ in evidence else ():
            for row in table.rows if table.columns[0] == "step" else ():
                told = [
                    f"{name} `{brief(cell, CELL).replace(TICK, QUOTE)}`"
                    for name, cell in zip(table.columns[1:], row[1:], strict=True)
                    if isinstance(cell, str) and cell
                ]
                if told and isinstance(row[0], int) and row[0] >= first:
                    return f"step {step(row[0])}: {'; '.join(told)} ({id_})"
    return ""


def _moved_before(onset: Onset, evidence: Mapping[str, Evidence]) -> str:
    """That a signal had moved before a finding began, which two numbers would leave a riddle."""
    window = next((e for e in evidence.values() if e.tool == "find_first_bad" and e.metrics), None)
    first = window.metrics.get("first_bad_step") if window and window.metrics else None
    if window is None or first is None or not first < onset.earliest < float("inf"):
        return ""
    named = f"`{window.signal}`" if window.signal else "a signal"
    at = step(int(first))
    return f"; {named} left its band at step {at} already, which this finding does not explain"


def role(finding: Finding, verdict: Verdict) -> str:
    """What another finding is to the leading one, where it lies and since when."""
    leading = verdict.leading
    if leading is not None and finding.mechanism_of == leading.id:
        what = "mechanism of the leading finding"
    elif finding.mechanism_of:
        of = next(f.cause for f in verdict.findings if f.id == finding.mechanism_of)
        what = f"mechanism of `{of}`"
    else:
        unread = {r.id for r in verdict.layers if r.outcome == "not_reached"}
        is_fact = finding.independent or finding.layer in unread
        what = "independent fact" if is_fact else "further finding"
    onset = onset_text(finding.first_bad)
    return f"{what}, layer `{finding.layer}`, confidence {finding.confidence}, {onset}"


def refutation(refuted_by: str) -> str:
    """What would refute a finding, as a sentence."""
    return f"This would be refuted by {refuted_by.rstrip('.')}."


def _unread(verdict: Verdict) -> str:
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


def _apart(items: Sequence[NotChecked]) -> Iterable[Row]:
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


def _requests(asked: Iterable[Request]) -> Iterable[RequestView]:
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


def _then(verdict: Verdict, reading: Sequence[Remark]) -> str:
    """How to go on where no cause is known; a lone file has no folder to put evidence into."""
    if verdict.outcome != "undetermined" or any(r.code == BESIDE for r in reading):
        return ""
    if not verdict.requests:
        return ""
    new = all(NEW_RUN in request.command for request in verdict.requests)
    return f"firstbad investigate {NEW_RUN if new else shlex.quote(verdict.run)}"


def _not_checked(items: Sequence[NotChecked]) -> Iterable[Row]:
    """What was not read, checks with the same reason in one row."""
    by_why: dict[str, list[str]] = {}
    kinds = ("missing", "optional", "not_applicable")
    for item in sorted(items, key=lambda item: kinds.index(item.kind)):
        needs = f". Would decide: {item.needs}" if item.needs else ""
        word = "not applicable: " if item.kind == "not_applicable" else ""
        by_why.setdefault(word + item.why + needs, []).append(f"{item.layer}.{item.check}")
    return (Row(names(places), why) for why, places in by_why.items())


def _weak_passes(verdict: Verdict) -> Iterable[Row]:
    """Passes by less than direct evidence, with what they do not exclude."""
    for result in verdict.layers:
        if result.outcome != "pass" or result.strength not in WEAK:
            continue
        open_ = dict.fromkeys(
            c.excludes_not for c in verdict.checks if c.layer == result.id and c.excludes_not
        )
        what = "; ".join(open_) or "the playbook does not say what this leaves open"
        yield Row(f"{result.id} ({result.strength})", what)
