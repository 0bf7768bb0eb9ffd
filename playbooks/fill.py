"""Measured numbers in the sentences of a playbook."""

from __future__ import annotations

from firstbad.playbooks.gate import Seen, observe
from firstbad.playbooks.loader import PLACE
from firstbad.tools.numbers import is_step, percent
from firstbad.tools.numbers import number as written


def fill(text: str, seen: Seen) -> str:
    """Put measured numbers into a sentence's `{alias.field}` places."""

    def number(place: str, form: str) -> str:
        value = observe(seen, place)
        if value is None:
            return "unknown"
        if form == "%":
            return percent(value)
        return written(value, digits=int(form or 3), step=is_step(place.split(".")[1]))

    return PLACE.sub(
        lambda m: number(f"{m[1]}.{m[2]}", m[0][1:-1].partition(":")[2]),
        text,
    )
