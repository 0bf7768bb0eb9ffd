"""What to ask for where a check could not be decided: only what is missing, in the run's terms."""

from __future__ import annotations

import shlex

from firstbad.playbooks.gate import Seen, all_hold
from firstbad.playbooks.model import Ask, Check
from firstbad.playbooks.results import Request

NEW_RUN = "NEW_RUN"
"""Stands in a command for a run that is yet to be made."""


def requests_of(check: Check, seen: Seen, *, layer: str, framework: str, run: str) -> list[Request]:
    """One request for each kind of evidence that is missing.

    An ask without `unless` is for when nothing else is missing.
    """
    asks = (Ask(need=check.request),) if isinstance(check.request, str) else check.request
    missing = [ask for ask in asks if ask.unless and not all_hold(ask.unless, seen)]
    needs = {_need(ask, framework): ask.new_run for ask in missing}
    if not any(needs):
        needs = {_need(ask, framework): ask.new_run for ask in asks if not ask.unless}
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


def _need(ask: Ask, framework: str) -> str:
    """The text for a framework; empty where it has nothing to ask for."""
    if isinstance(ask.need, str):
        return ask.need
    return ask.need.get(framework, ask.need["default"])
