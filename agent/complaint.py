"""What a complaint says, read by a grammar: the step that was noticed and the symptoms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firstbad.agent.complaint_steps import find_step
from firstbad.agent.complaint_words import (
    ALONE,
    CLAUSE,
    EVAL_SCORE,
    FALLBACK,
    MOVES,
    PAIRS,
    SIGNALS,
    SUBJECTS,
)

LIST_WORDS = 3
"""A clause of so few words with a subject and no move is an item of a list."""


@dataclass(frozen=True)
class Complaint:
    """A complaint in the words of the playbook."""

    raw: str
    noticed_step: int | None = None
    symptoms: tuple[str, ...] = ()
    """Canonical words such as `reward_drop`, in the order in which they were said."""
    signal: str | None = None
    """Canonical name of the signal that is complained about first."""


def read_complaint(text: str, step: int | None = None) -> Complaint:
    """Read a complaint in English or Chinese.

    Args:
        text: what the person wrote; may be empty.
        step: a step given apart from the text, which wins.
    """
    raw = text.encode("utf-8", "replace").decode("utf-8").strip()
    lowered = raw.lower()
    symptoms = tuple(_merged(list(dict.fromkeys(_symptoms(lowered)))))
    return Complaint(
        raw=raw,
        noticed_step=step if step is not None else find_step(lowered),
        symptoms=symptoms,
        signal=next((SIGNALS[s] for s in symptoms if s in SIGNALS), None),
    )


def _merged(symptoms: list[str]) -> Iterator[str]:
    """Two words for one thing become one: a fall to zero is a fall."""
    risen = {"reward_rise", "reward_hacking"} & set(symptoms)
    parted = bool(risen) and "eval_down" in symptoms
    if parted:
        yield "reward_rise_eval_down"
    for symptom in symptoms:
        if parted and symptom in (*risen, "eval_down"):
            continue
        if symptom == "reward_zero" and "reward_drop" in symptoms:
            continue
        if symptom == "reward_flat" and "reward_zero" in symptoms:
            continue
        if _is_vague(symptom, symptoms):
            continue
        yield symptom


def _is_vague(symptom: str, symptoms: list[str]) -> bool:
    """Whether it says "odd" of something of which more is said."""
    about, _, odd = symptom.rpartition("_")
    return odd == "odd" and any(s != symptom and s.startswith(about + "_") for s in symptoms)


def _symptoms(text: str) -> Iterator[str]:
    """Symptoms clause by clause; a clause without a subject speaks of the one before."""
    spoken_of: list[str] = []
    listed: list[str] = []
    for clause in CLAUSE.split(EVAL_SCORE.sub("eval", text)):
        subjects = [name for name, pattern in SUBJECTS.items() if pattern.search(clause)]
        moves = [name for name, pattern in MOVES.items() if pattern.search(clause)]
        alone = [name for name, pattern in ALONE.items() if pattern.search(clause)]
        if not (moves or alone):
            # "loss, grad norm and KL are 0": short clauses without a move are items of a list.
            listed = [*listed, *subjects] if len(clause.split()) <= LIST_WORDS else []
            spoken_of = subjects or spoken_of
            continue
        meant = [*listed, *subjects] or spoken_of
        pairs = _nearest(clause) if len(subjects) > 1 and len(moves) > 1 else []
        pairs = pairs or [(s, m) for s in meant for m in moves]
        found = [PAIRS[pair] for pair in pairs if pair in PAIRS]
        yield from found
        more = bool(found) or not set(subjects) <= {"reward", "eval", "loss"}
        yield from (name for name in alone if not (more and name in FALLBACK))
        spoken_of, listed = meant, []


def _nearest(clause: str) -> list[tuple[str, str]]:
    """Each move with the subjects said since the move before it: "KL rose and entropy fell".

    Empty where the clause begins with a move, so that order tells nothing.
    """
    said = sorted(
        [(m.start(), 0, name) for name, p in SUBJECTS.items() for m in p.finditer(clause)]
        + [(m.start(), 1, name) for name, p in MOVES.items() for m in p.finditer(clause)]
    )
    pairs: list[tuple[str, str]] = []
    spoken_of: list[str] = []
    moved = False
    for _, is_move, name in said:
        if not is_move:
            spoken_of = [name] if moved else [*spoken_of, name]
        elif not spoken_of:
            return []
        else:
            pairs += [(subject, name) for subject in spoken_of]
        moved = bool(is_move)
    return pairs
