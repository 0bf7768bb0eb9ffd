"""What to ask for where a check could not be decided: only what is missing, in the run's terms."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from firstbad.playbooks.fill import fill
from firstbad.playbooks.gate import Seen, all_hold
from firstbad.playbooks.model import Ask, Check
from firstbad.playbooks.results import NEW_RUN, Request

RECORD = "record"
"""Dialect of runs that a flight recorder kept steps of."""


def requests_of(
    check: Check, seen: Seen, *, layer: str, dialects: Sequence[str], run: str, longer: str = ""
) -> list[Request]:
    """One request for each kind of evidence that is missing.

    `dialects`: what wrote the run, as texts of an ask are named; the first that has one counts.

    An ask without `unless` is for when nothing else is missing. What every step of a short run has
    is not missing: `longer`, once, asks for more steps.
    """

    def need_of(ask: Ask) -> tuple[str, bool]:
        if longer and ask.in_every_step and all_hold(ask.in_every_step, seen):
            return fill(longer, seen), True
        name, text = _need(ask, dialects)
        return text, ask.new_run or name == RECORD  # what was not kept is gone

    asks = (Ask(need=check.request),) if isinstance(check.request, str) else check.request
    missing = [ask for ask in asks if ask.unless and not all_hold(ask.unless, seen)]
    needs = dict(map(need_of, missing))
    if not any(needs):
        needs = dict(need_of(ask) for ask in asks if not ask.unless)
    return [
        Request(
            layer=layer,
            need=need,
            command=check.command.replace("RUN", NEW_RUN if new_run else shlex.quote(run)),
            decides=check.decides or check.asks,
        )
        for need, new_run in needs.items()
        if need
    ]


def _need(ask: Ask, dialects: Sequence[str]) -> tuple[str, str]:
    """The first of these dialects that has a text, and it; empty where it has nothing to ask."""
    if isinstance(ask.need, str):
        return "default", ask.need
    name = next(name for name in (*dialects, "default") if name in ask.need)
    return name, ask.need[name]
