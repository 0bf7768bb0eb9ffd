"""The complaint against the record: what the log says to it, and what of it stays open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from firstbad.playbooks.fill import fill
from firstbad.playbooks.gate import Seen, all_hold, observe
from firstbad.playbooks.model import Claim, Note
from firstbad.playbooks.results import CheckResult, Request
from firstbad.tools.numbers import number


@dataclass(frozen=True)
class Open:
    """A claim that the record neither contradicts nor explains."""

    claim: Claim
    why: str
    """What is missing, after "the complaint says that ... "."""
    unread: tuple[str, ...] = ()
    """`layer.check`s that would answer it and have no direct evidence."""


def claims_made(claims: Iterable[Claim], symptoms: Sequence[str]) -> list[Claim]:
    """The claims that the complaint makes, in the order of the playbook."""
    return [claim for claim in claims if claim.symptom in symptoms]


def answers_to(
    claims: Iterable[Claim],
    about_step: Iterable[Note],
    checks: Sequence[CheckResult],
    seen: Seen,
    *,
    brief: bool = False,
) -> Iterator[str]:
    """What the record says to the step that was named and to the claims.

    `brief`, for beside a finding, leaves out what else was looked for where numbers answer.
    """
    passed = _direct(checks)
    yield from (fill(note.say, seen) for note in about_step if all_hold(note.when, seen))
    for claim in claims:
        if told := "".join(_told(claim, {} if brief and claim.measure else passed, seen)):
            yield f"The complaint says that {claim.says}{told}"


def _told(claim: Claim, passed: Mapping[str, CheckResult], seen: Seen) -> Iterator[str]:
    """What follows a claim: its numbers, what explains it, and the checks that looked into it."""
    measured = _measured(claim, seen)
    explained = [f" {text}" for text in _explained(claim, seen)]
    if _contradicted(claim, seen):
        yield f"; {fill(claim.contradicted, seen)}.{measured}"
    else:
        looked = _looked_into(claim, passed)
        if measured:
            holds = " It is so." if claim.true_if and all_hold(claim.true_if, seen) else ""
            yield f".{holds}{measured}"
        elif _not_logged(claim, seen):
            yield (f"; {claim.called} is not logged, so that nothing here can confirm or deny it.")
        elif explained or looked:
            yield "."
        yield looked
    yield from explained


def unjudged(claims: Iterable[Claim], symptoms: Sequence[str], seen: Seen) -> list[str]:
    """What is complained of and no check of the playbook judges, in words."""
    settled = {
        claim.symptom
        for claim in claims
        if claim.answered_by or claim.answers or _contradicted(claim, seen)
    }
    settled.add("is_normal")  # a question, not a symptom
    return [symptom.replace("_", " ") for symptom in symptoms if symptom not in settled]


def left_open(claims: Iterable[Claim], checks: Sequence[CheckResult], seen: Seen) -> list[Open]:
    """Claims that the log does not contradict and nothing explains.

    A change that a person saw is explained as normal only by evidence that could have shown its
    cause; a declaration could not. A worse outcome that the log plainly shows is never normal.
    """
    passed = _direct(checks)
    found = []
    for claim in claims:
        unread = tuple(name for name in claim.answered_by if name not in passed)
        if _contradicted(claim, seen):
            continue
        if _plain(claim, seen):
            found.append(Open(claim, "the log shows it, and no check explains it"))
        elif any(_explained(claim, seen)):
            continue
        elif _not_logged(claim, seen):
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


def _sides(claim: Claim, seen: Seen) -> Mapping[str, float | None]:
    return {end: observe(seen, f"{claim.measure}_{end}") for end in ("before", "after", "z")}


def _not_logged(claim: Claim, seen: Seen) -> bool:
    """The comparison was made at a step that is recorded, and the signal was not there."""
    if not claim.measure or observe(seen, f"{claim.measure.split('.')[0]}.outside_by") != 0:
        return False
    sides = _sides(claim, seen)
    return sides["before"] is None and sides["after"] is None


def _measured(claim: Claim, seen: Seen) -> str:
    """The signal before and after, as a sentence; empty where it was not compared."""
    if not claim.measure:
        return ""
    sides = _sides(claim, seen)
    if sides["z"] is None:
        return ""
    step = observe(seen, f"{claim.measure.split('.')[0]}.step")
    where = (
        ("in the first third of the run", "in the last")
        if step is None
        else (f"in the steps before {step:.0f}", "from it on")
    )
    errors = number(abs(sides["z"]), digits=2)
    noun = "error" if errors == "1" else "errors"
    called = claim.called[:1].upper() + claim.called[1:]
    return (
        f" {called} averages {number(sides['before'], digits=3)} {where[0]} and "
        f"{number(sides['after'], digits=3)} {where[1]} ({errors} standard {noun} "
        f"{'lower' if sides['z'] < 0 else 'higher'})."
    )
