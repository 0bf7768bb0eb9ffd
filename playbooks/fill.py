"""Measured numbers in the sentences of a playbook."""

from __future__ import annotations

import re

from firstbad.playbooks.gate import Seen, observe
from firstbad.playbooks.loader import PLACE, QUOTE
from firstbad.tools.numbers import is_step, percent
from firstbad.tools.numbers import number as written
from firstbad.tools.plurals import of_one


def fill(text: str, seen: Seen) -> str:
    """Put measured numbers into a sentence's `{alias.field}` places.

    `{alias.quote}` is what the run's own files say: a sentence of its own, or nothing.
    """

    def number(place: str, form: str) -> str:
        value = observe(seen, place)
        if value is None:
            return "unknown"
        if form == "%":
            return percent(value)
        return written(value, digits=int(form or 3), step=is_step(place.split(".")[1]))

    def put(match: re.Match[str]) -> str:
        if match[2] == QUOTE:
            return seen[match[1]].quote if match[1] in seen else ""
        return number(f"{match[1]}.{match[2]}", match[0][1:-1].partition(":")[2])

    return of_one(PLACE.sub(put, text)).rstrip()
