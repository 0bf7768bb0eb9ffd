"""What a complaint says, read by a grammar: the step that was noticed and the symptoms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from firstbad.agent.complaint_levels import is_denied, plainly, without_run
from firstbad.agent.complaint_steps import find_step
from firstbad.agent.complaint_words import (
    ALONE,
    CLAUSE,
    EVAL_SCORE,
    FALLBACK,
    FINE,
    MOVES,
    PAIRS,
    SIGNALS,
    SUBJECTS,
)

HELP = "what can be named: firstbad investigate --help"
QUOTED = 80
"""Most characters of a statement that are told back."""
_ASIDE = re.compile(r"\s*(?:or|not|my|is|are|do(?:es)?|did|so)\b")
"""How a statement begins that asks or goes on with the one before."""
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)
_LEAD = re.compile(r"^(?:(?:the|our|my|its|their|mean|train(?:ing)?|average)\s+)*")
"""What may stand before a signal at the beginning of a statement."""
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
    not_understood: tuple[str, ...] = ()
    """Statements of which nothing was understood: nothing is guessed at."""


def read_complaint(text: str, step: int | None = None) -> Complaint:
    """Read a complaint in English or Chinese.

    Args:
        text: what the person wrote; may be empty.
        step: a step given apart from the text, which wins.
    """
    raw = text.encode("utf-8", "replace").decode("utf-8").strip()
    clauses = list(_clauses(raw))
    said = [symptom for _, found in clauses for symptom in found or ()]
    symptoms = tuple(_merged(list(dict.fromkeys(said))))
    unclear = [text for text, found in clauses if found == [] or (found is None and not symptoms)]
    return Complaint(
        raw=raw,
        noticed_step=step if step is not None else find_step(raw.lower()),
        symptoms=symptoms,
        signal=next((SIGNALS[s] for s in symptoms if s in SIGNALS), None),
        not_understood=tuple(unclear),
    )


def told_back(not_understood: Sequence[str]) -> str:
    """What was not understood and where to read what can be, as a sentence; empty without any."""
    if not not_understood:
        return ""
    quoted = ", ".join(f"“{_short(text)}”" for text in not_understood)
    return f"Not understood of the complaint: {quoted} ({HELP})."


def _short(text: str) -> str:
    """At most so much of a statement, ended between words where there are any."""
    if len(text) <= QUOTED:
        return text
    words, space, _ = text[: QUOTED + 1].rpartition(" ")
    return f"{words} …" if space else text[:QUOTED] + "…"


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
        if symptom == "slow" and "learning_slow" in symptoms:
            continue
        if _is_vague(symptom, symptoms):
            continue
        yield symptom


def _is_vague(symptom: str, symptoms: list[str]) -> bool:
    """Whether it says "odd" of something of which more is said."""
    about, _, odd = symptom.rpartition("_")
    return odd == "odd" and any(s != symptom and s.startswith(about + "_") for s in symptoms)


def _clauses(raw: str) -> Iterator[tuple[str, list[str] | None]]:
    """Each statement with its symptoms; a clause without a subject speaks of the one before.

    An empty list where a signal is named, or a move, and nothing is made of it; None where nothing
    of the grammar is said, which matters only where nothing else is understood either.
    """
    spoken_of: list[str] = []
    listed: list[str] = []
    waiting: list[str] = []
    for said in _statements(raw):
        clause = plainly(EVAL_SCORE.sub("eval", said.lower()))
        subjects = [name for name, pattern in SUBJECTS.items() if pattern.search(clause)]
        signals = without_run(clause) if subjects or spoken_of else clause
        moves = list(dict.fromkeys(name for _, name in _moves(signals)))
        alone = [name for name, pattern in ALONE.items() if pattern.search(clause)]
        if not (moves or alone):
            fine = FINE.search(clause) is not None or _denies(clause)
            if len(clause.split()) <= LIST_WORDS and subjects and not fine:
                # "loss, grad norm and KL are 0": short clauses without a move are items of a list.
                listed, waiting = [*listed, *subjects], [*waiting, said.strip()]
            else:
                listed = []
                if not fine and re.search(r"[^\W\d]", clause):
                    told = bool(subjects) and not _ASIDE.match(clause)
                    yield said.strip(), [] if told else None
            spoken_of = subjects or spoken_of
            continue
        meant = [*listed, *subjects] or spoken_of
        pairs = _nearest(signals) if len(subjects) > 1 and moves else []
        if pairs:
            pairs = [*((s, m) for s in listed for m in moves), *pairs]
        pairs = pairs or [(s, m) for s in meant for m in moves]
        found = [PAIRS[pair] for pair in pairs if pair in PAIRS]
        of_run = signals != clause
        more = bool(found) or not (of_run or set(subjects) <= {"reward", "eval", "loss"})
        found += [name for name in alone if not (more and name in FALLBACK)]
        if found or not FINE.search(clause):
            yield said.strip(), found if found or meant else None
        spoken_of, listed, waiting = meant, [], []
    yield from ((text, []) for text in waiting if not _ASIDE.match(text))


def _statements(raw: str) -> Iterator[str]:
    """Clauses, and of "KL rises and the loss swings" both: what follows "and" is the next one's.

    Not where a move comes first, as in "spikes of loss and KL", nor where only one is said.
    """
    for said in CLAUSE.split(raw):
        begin = 0
        for mark in _AND.finditer(said):
            first, rest = said[begin : mark.start()].lower(), said[mark.end() :].lower()
            subject = min(
                (m.start() for p in SUBJECTS.values() for m in p.finditer(first)), default=-1
            )
            moved = min((start for start, _ in _moves(first)), default=-1)
            if 0 <= subject < moved and any(
                p.match(_LEAD.sub("", rest)) for p in SUBJECTS.values()
            ):
                yield said[begin : mark.start()]
                begin = mark.end()
        yield said[begin:]


def _moves(clause: str) -> Iterator[tuple[int, str]]:
    """Place and name of each move that is not denied, in the order of the grammar."""
    for name, pattern in MOVES.items():
        for match in pattern.finditer(clause):
            if not is_denied(clause, match.start()):
                yield match.start(), name


def _denies(clause: str) -> bool:
    """Whether it says of a move that there is none: "the reward did not spike"."""
    return any(
        is_denied(clause, match.start())
        for pattern in MOVES.values()
        for match in pattern.finditer(clause)
    )


def _nearest(clause: str) -> list[tuple[str, str]]:
    """Each move with the subjects said since the move before it: "KL rose and entropy fell".

    Empty where the clause begins with a move, so that order tells nothing.
    """
    said = sorted(
        [(m.start(), 0, name) for name, p in SUBJECTS.items() for m in p.finditer(clause)]
        + [(start, 1, name) for start, name in _moves(clause)]
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
