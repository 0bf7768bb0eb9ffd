"""What an investigation tells while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Progress:
    """One thing that happened."""

    kind: Literal["started", "layer", "tool", "judged", "facts", "concluded"]
    text: str
    """Incident handle, layer's question, tool's name, reason of an outcome."""
    layer: str | None = None
    number: str = ""
    outcome: str | None = None
    strength: str | None = None
    reused: bool = False
    """True for a tool whose saved result was taken."""


OnProgress = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Tell nobody."""
