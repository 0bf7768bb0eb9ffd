"""What an investigation tells while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Progress:
    """One thing that happened."""

    kind: Literal["started", "repaired", "asked", "layer", "tool", "judged", "facts", "concluded"]
    text: str
    """Incident handle, what is measured again, rows that a judge has, layer's question, name of a
    tool, why an outcome is."""
    layer: str | None = None
    number: str = ""
    outcome: str | None = None
    strength: str | None = None
    reused: bool = False
    """True for a tool whose saved result was taken."""


OnProgress = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Tell nobody."""
