"""The first page: what happened, what to do now, what to know before acting.

Terminal, Markdown and HTML say it in these words and in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from firstbad.agent.memo.actions import actions
from firstbad.agent.memo.caveats import caveats
from firstbad.agent.memo.open_questions import (
    RequestView,
    how_to_go_on,
    not_checked,
    requests_to_show,
    set_apart,
    unread,
    weak_passes,
)
from firstbad.agent.memo.text import LONGEST, brief
from firstbad.agent.memo.words import Row, step
from firstbad.agent.remarks import LEFT_OUT, Remark
from firstbad.playbooks.causes import causes
from firstbad.playbooks.results import Finding, Verdict
from firstbad.tools.evidence import Evidence

HEADLINE, COMPLAINT = 1000, 240
"""Longest texts: the headline, what the person said."""
WORDS = {"incident": "INCIDENT", "healthy": "HEALTHY", "undetermined": "UNDETERMINED"}


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
        actions=tuple(actions(verdict, leading, cause, evidence)),
        requests=tuple(requests_to_show(verdict.requests)),
        then=how_to_go_on(verdict, reading),
        caveats=tuple(caveats(verdict, leading, cause, evidence)),
        unread=unread(verdict),
        apart=tuple(set_apart(verdict.not_checked)),
        not_checked=tuple(not_checked(verdict.not_checked)),
        notes=verdict.notes,
        weak=tuple(weak_passes(verdict)),
    )


def _facts(verdict: Verdict, leading: Finding | None) -> Iterable[Row]:
    """The few figures under the headline."""
    onset = verdict.first_bad
    if verdict.ended:
        yield Row("run ended", verdict.ended)
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
        because = f": {leading.confidence_because}" if leading.confidence_because else ""
        yield Row("confidence", leading.confidence + because)
    for book in verdict.playbooks:
        if not book.shipped:
            yield Row(
                "playbook", f"`{book.name}`, {book.digest}: not the one that ships with firstbad"
            )
    if leading is not None or verdict.conditional_on:
        yield Row("conditional on", ", ".join(verdict.conditional_on) or "nothing")
