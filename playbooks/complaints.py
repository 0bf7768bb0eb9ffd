"""The complaint against the record: what it names that the log contradicts, or that stays open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from firstbad.playbooks.gate import Seen, all_hold
from firstbad.playbooks.model import Claim, Note
from firstbad.playbooks.results import CheckResult


def claims_made(claims: Iterable[Claim], symptoms: Sequence[str]) -> list[Claim]:
    """The claims that the complaint makes, in the order of the playbook."""
    return [claim for claim in claims if claim.symptom in symptoms]


def notes_on(claims: Iterable[Claim], seen: Seen) -> Iterable[Note]:
    """What the log says to the claims: that it shows no such thing, or an answer."""
    for claim in claims:
        if _contradicted(claim, seen):
            text = (
                f"The complaint says that {claim.says}; no lasting change of that kind is logged."
            )
            yield Note(when={}, say=text)
        yield from (note for note in claim.answers if all_hold(note.when, seen))


def unknown_to(claims: Iterable[Claim], symptoms: Sequence[str]) -> str:
    """That the playbook looks for no cause of some of what is complained of; empty otherwise."""
    known = {claim.symptom for claim in claims}
    named = [symptom.replace("_", " ") for symptom in symptoms if symptom not in known]
    if not named:
        return ""
    return f"The complaint names {', '.join(named)}: no check of this playbook looks for its cause."


def left_open(
    claims: Iterable[Claim], checks: Sequence[CheckResult], seen: Seen
) -> list[tuple[Claim, str]]:
    """Claims that the log does not contradict and no direct evidence answers, with the check.

    A change that a person saw is explained as normal only by evidence that could have shown its
    cause; a declaration could not.
    """
    direct = {
        f"{c.layer}.{c.check}" for c in checks if c.outcome == "pass" and c.strength == "direct"
    }
    return [
        (claim, claim.answered_by)
        for claim in claims
        if claim.answered_by and claim.answered_by not in direct and not _contradicted(claim, seen)
    ]


def _contradicted(claim: Claim, seen: Seen) -> bool:
    return bool(claim.contradicted_if) and all_hold(claim.contradicted_if, seen)
