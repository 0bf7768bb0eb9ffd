"""Where something that holds near 0 stops to hold: a grid finds it, halving tells it closely."""

from __future__ import annotations

from collections.abc import Callable, Iterable

CLOSE = 1e-5


def edge(holds: Callable[[float], bool], grid: Iterable[float]) -> tuple[float, float] | None:
    """The last distance at which it holds and the first at which it does not, CLOSE apart.

    None where it holds on all of the grid, which ascends from 0.
    """
    inside, outside = 0.0, None
    for distance in grid:
        if not holds(distance):
            outside = distance
            break
        inside = distance
    if outside is None:
        return None
    while outside - inside > CLOSE:
        middle = (inside + outside) / 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside, outside
