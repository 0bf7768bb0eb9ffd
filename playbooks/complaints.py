"""The complaint against the record: what the log says to it, and what of it stays open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from firstbad.playbooks.fill import fill
from firstbad.playbooks.gate import Seen, all_hold, observe
from firstbad.playbooks.model import Claim, Comparison, Note
from firstbad.playbooks.results import CheckResult, Finding, Request
from firstbad.tools.numbers import number

QUESTIONS = frozenset({"is_normal", "asks"})
"""Symptoms that ask about all of the run: the verdict answers them."""


@dataclass(frozen=True)
class Open:
    """A claim that the record neither contradicts nor explains."""

    claim: Claim
    why: str
    """What is missing, after "the complaint says that ... "."""
    unread: tuple[str, ...] = ()
    """`layer.check`s that would answer it and have no direct evidence."""


@dataclass(frozen=True)
class Made:
    """A claim that the complaint makes, with the evidence that it is held against."""

    claim: Claim
    seen: Seen


def claims_made(
    claims: Iterable[Claim],
    symptoms: Sequence[str],
    seen: Seen,
    compared: Sequence[Comparison] = (),
    named: int | None = None,
) -> list[Made]:
    """The claims that the complaint makes, in the order of the playbook.

    Where it names a step, its claims are held against that one.
    """
    return [
        Made(claim, _held_against(claim, seen, compared, named))
        for claim in claims
        if claim.symptom in symptoms
    ]


def _held_against(
    claim: Claim, seen: Seen, compared: Sequence[Comparison], named: int | None
) -> Seen:
    """The evidence with the first comparison that fits in place of the claim's own.

    At the step that was named that is only another span, for a move that the claim's own is too
    long to show.
    """
    own, _, signal = claim.measure.partition(".")
    for each in compared if signal else ():
        moved = observe(seen, f"{each.alias}.{signal}_z")
        step = observe(seen, f"{each.alias}.step")
        shown = abs(observe(seen, f"{claim.measure}_z") or 0.0) >= each.least_z
        if step is None or (named is not None and (step != named or shown)):
            continue
        if moved is not None and abs(moved) >= each.least_z:
            return {**seen, own: seen[each.alias]}
    return seen


def answers_to(
    made: Iterable[Made],
    about_step: Iterable[Note],
    checks: Sequence[CheckResult],
    seen: Seen,
    leading: Finding | None = None,
    ruled_out: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """What the record says to the step that was named and to the claims.

    Beside a finding it leaves out what else was looked for where numbers answer.
    """
    passed = _direct(checks)
    yield from (fill(note.say, seen) for note in about_step if all_hold(note.when, seen))
    for each in made:
        claim = each.claim
        looked = {} if leading is not None and (claim.measure or claim.instead) else passed
        told = (
            _see_verdict(claim, passed)
            if leading is not None and _is_verdict(each, leading)
            else "".join(_told(claim, looked, each.seen, leading))
        )
        if told:
            yield f"The complaint says that {claim.says}{told}"
        elif because := next(((ruled_out or {}).get(name) for name in claim.answered_by), None):
            yield f"The complaint says that {claim.says}; there is nothing to check: {because}."


def _is_verdict(made: Made, leading: Finding) -> bool:
    """Whether the leading finding is what the claim is about: no check speaks against it then."""
    claim, onset = made.claim, leading.first_bad
    step = observe(made.seen, claim.begins_at) if claim.begins_at else None
    return leading.cause in claim.is_cause or (
        step is not None and onset.earliest <= step <= onset.latest
    )


def _see_verdict(claim: Claim, passed: Mapping[str, CheckResult]) -> str:
    excluded = claim.excluded and any(name in passed for name in claim.answered_by)
    return ". It did: see the verdict." + (f" {claim.excluded}" if excluded else "")


def _told(
    claim: Claim, passed: Mapping[str, CheckResult], seen: Seen, leading: Finding | None
) -> Iterator[str]:
    """What follows a claim: its numbers, what explains it, and the checks that looked into it."""
    measured = _measured(claim, seen)
    holds = _holds(claim, seen)
    explained = [f" {text}" for text in _explained(claim, seen)]
    begins = _begins_there(claim, seen, leading) if measured and holds and leading else ""
    if _contradicted(claim, seen):
        if not holds:
            holds = f"It is not so: {fill(claim.contradicted, seen)}."
        elif _is_true(claim, seen) and not begins:
            holds = "It moves that way, though it does not leave its band."
        yield f". {holds}{measured}"
    else:
        looked = _looked_into(claim, passed)
        if measured:
            yield f".{holds and ' '}{holds}{measured}"
        elif _not_logged(claim, seen):
            yield (f"; {claim.called} is not logged, so that nothing here can confirm or deny it.")
        elif explained or looked:
            yield "."
        yield looked
    yield begins
    yield from explained
    yield from (f" {fill(n.say, seen)}" for n in claim.beside if all_hold(n.when, seen))


def _holds(claim: Claim, seen: Seen) -> str:
    """Whether the log bears the claim out, as a sentence; empty where it does not tell."""
    if _is_true(claim, seen):
        return "It is so."
    if claim.whole_true_if and all_hold(claim.whole_true_if, seen):
        return f"It is so for {claim.whole_called}."
    if claim.partly_if and all_hold(claim.partly_if, seen):
        return f"It is so in part: {fill(claim.partly, seen)}."
    return ""


def _begins_there(claim: Claim, seen: Seen, leading: Finding) -> str:
    """Names the finding where it begins at the step that the signal is compared at."""
    step = observe(seen, f"{claim.measure.split('.')[0]}.step")
    begins = step is not None and step == leading.first_bad.first_bad
    return f" The finding begins at step {step:.0f}." if begins else ""


def general_answer(outcome: Literal["incident", "healthy", "undetermined"]) -> str:
    """The reply to a question about all of the run."""
    return {
        "healthy": "Nothing odd was found in what was checked.",
        "incident": "Something is wrong: see the verdict and what to do now.",
        "undetermined": "That can't be said yet: see what is asked for.",
    }[outcome]


def unjudged(made: Iterable[Made], symptoms: Sequence[str]) -> list[str]:
    """What is complained of and no check of the playbook judges, in words."""
    settled = {
        m.claim.symptom
        for m in made
        if m.claim.answered_by or m.claim.answers or _contradicted(m.claim, m.seen)
    }
    return [s.replace("_", " ") for s in symptoms if s not in settled | QUESTIONS]


def left_open(
    made: Iterable[Made], checks: Sequence[CheckResult], ruled_out: Iterable[str] = ()
) -> list[Open]:
    """Claims that the log does not contradict and nothing explains.

    A change that a person saw is explained as normal only by evidence that could have shown its
    cause; a declaration could not. A worse outcome that the log plainly shows is never normal.
    """
    settled = {*_direct(checks), *ruled_out}
    found = []
    for claim, seen in ((m.claim, m.seen) for m in made):
        unread = tuple(name for name in claim.answered_by if name not in settled)
        if _contradicted(claim, seen):
            continue
        if _plain(claim, seen):
            found.append(Open(claim, "the log shows it, and no check explains it"))
        elif any(_explained(claim, seen)):
            continue
        elif claim.request and _not_logged(claim, seen):
            found.append(Open(claim, f"{claim.called} is not logged"))
        elif unread:
            named = " and ".join(f"`{name}`" for name in unread)
            have = "has" if len(unread) == 1 else "have"
            found.append(Open(claim, f"{named} {have} no direct evidence", unread))
    return found


def request_of(open_: Open, run: str) -> Iterator[Request]:
    """What would settle a claim that no check is to answer, where the playbook names it."""
    claim = open_.claim
    if claim.request and not open_.unread:
        first = next(iter(claim.answered_by), "window")
        yield Request(
            layer=first.split(".")[0],
            need=claim.request,
            command=f"firstbad runs show {run}",
            decides=f"whether it is a fault that {claim.says}",
        )


def _direct(checks: Iterable[CheckResult]) -> dict[str, CheckResult]:
    """Checks that passed on direct evidence, by `layer.check`."""
    return {
        f"{c.layer}.{c.check}": c for c in checks if c.outcome == "pass" and c.strength == "direct"
    }


def _explained(claim: Claim, seen: Seen) -> Iterator[str]:
    """The claim's own explanations whose bounds hold."""
    return (fill(note.say, seen) for note in claim.answers if all_hold(note.when, seen))


def _looked_into(claim: Claim, passed: Mapping[str, CheckResult]) -> str:
    """Checks that could have found a fault behind the claim, and did not."""
    found = [f"`{name}` ({passed[name].message})" for name in claim.answered_by if name in passed]
    verb = "passes" if len(found) == 1 else "pass"
    asks = "A check that looks" if len(found) == 1 else "Checks that look"
    if not found:
        return ""
    return f" {asks} for a fault behind it {verb} on direct evidence: {' and '.join(found)}."


def _contradicted(claim: Claim, seen: Seen) -> bool:
    shown = bool(claim.contradicted_if) and all_hold(claim.contradicted_if, seen)
    return shown and not _plain(claim, seen)


def _plain(claim: Claim, seen: Seen) -> bool:
    return bool(claim.open_if) and all_hold(claim.open_if, seen)


def _is_true(claim: Claim, seen: Seen) -> bool:
    return bool(claim.true_if) and all_hold(claim.true_if, seen)


def _sides(measure: str, seen: Seen) -> Mapping[str, float | None]:
    return {end: observe(seen, f"{measure}_{end}") for end in ("before", "after", "z")}


def _not_logged(claim: Claim, seen: Seen) -> bool:
    """The comparison was made at a step that is recorded, and the signal was not there."""
    if not claim.measure or observe(seen, f"{claim.measure.split('.')[0]}.outside_by") != 0:
        return False
    sides = _sides(claim.measure, seen)
    return sides["before"] is None and sides["after"] is None


def _measured(claim: Claim, seen: Seen) -> str:
    """The signal before and after, as a sentence; empty where it was not compared."""
    if claim.instead:
        said = (n.say for n in claim.instead if all_hold(n.when, seen))
        return next((f" {fill(say, seen)}" for say in said), "")
    if not claim.measure:
        return ""
    part, whole = _sides(claim.measure, seen), _sides(claim.whole or claim.measure, seen)
    told = _averages(claim.measure, claim.called, seen)
    return told + (_averages(claim.whole, claim.whole_called, seen) if whole != part else "")


def _averages(measure: str, called: str, seen: Seen) -> str:
    sides = _sides(measure, seen)
    if sides["z"] is None:
        return ""
    alias = measure.split(".")[0]
    spans = [
        " to ".join(
            number(observe(seen, f"{alias}.{side}_{end}_step"), step=True)
            for end in ("first", "last")
        )
        for side in ("before", "after")
    ]
    errors = number(abs(sides["z"]), digits=2)
    noun = "error" if errors == "1" else "errors"
    return (
        f" {called[:1].upper()}{called[1:]} averages {number(sides['before'], digits=3)} in steps "
        f"{spans[0]} and {number(sides['after'], digits=3)} in steps {spans[1]} ({errors} standard "
        f"{noun} {'lower' if sides['z'] < 0 else 'higher'})."
    )
