"""From logged keys to canonical signals, with notes on what their meaning depends on."""

from __future__ import annotations

import numpy as np

from firstbad.tools.readers.aliases import Alias, alias_of, sums_of, unit_of
from firstbad.tools.readers.log import Log
from firstbad.tools.run import FloatArray, IntArray, Note, Signal, Signals

LARGEST = 1e100
"""No trainer's float32 holds it: what is larger has overflowed, as Inf has."""

ROUNDED = 1e-3
"""Relative difference of two loggers that round one value, which TRL does to four digits."""


def name_signals(log: Log, framework: str) -> tuple[Signals, tuple[Note, ...]]:
    """The signals of a log; a key that no alias explains is kept as unknown."""
    known: dict[str, Signal] = {}
    unknown: dict[str, Signal] = {}
    notes: list[Note] = []
    found = {key: alias_of(key, framework) for key in log.series}
    merged = {key: series.merged() for key, series in log.series.items()}
    # Of two keys for one name the one that stands first in the table is used.
    order = sorted(log.series, key=lambda key: _rank(found[key]))
    for key in order:
        series, alias = merged[key], found[key]
        if alias is None:
            unknown[key] = _signal(key, key, series, None)
        elif alias.name in known:
            unknown[key] = _signal(key, key, series, None)
            used = known[alias.name].source_key
            if not _agree(known[alias.name], _signal(alias.name, key, series, alias)):
                notes.append(Note("same_signal", f"`{key}` and `{used}`: `{used}` is {alias.name}"))
        else:
            known[alias.name] = _signal(alias.name, key, series, alias)
            if alias.note:
                notes.append(Note("meaning", f"`{key}` as {alias.name}: {alias.note}"))
    for name, parts in sums_of(framework).items():
        if name not in known and all(part in unknown for part in parts):
            known[name] = _sum(name, [unknown[part] for part in parts])
    replaced = sum(count for _, _, count in merged.values())
    if replaced:
        text = f"{replaced:,} values were followed by another at the same step: the last counts"
        notes.append(Note("duplicates", text))
    return Signals(dict(sorted(known.items())), dict(sorted(unknown.items()))), tuple(notes)


def given_otherwise(signals: Signals, framework: str) -> frozenset[str]:
    """Keys that are unknown only because another key gives the same signal."""
    named = {key: alias_of(key, framework) for key in signals.unknown}
    return frozenset(key for key, alias in named.items() if alias and alias.name in signals.known)


def _agree(one: Signal, other: Signal) -> bool:
    """Whether two keys give the same values at the steps that both have, but for rounding."""
    steps = np.intersect1d(one.steps, other.steps)
    ours, theirs = (signal.values[np.isin(signal.steps, steps)] for signal in (one, other))
    return len(steps) > 0 and bool(np.allclose(ours, theirs, rtol=ROUNDED, atol=1e-9))


def _rank(alias: Alias | None) -> int:
    return 10_000 if alias is None else alias.rank


def _signal(
    name: str, key: str, series: tuple[IntArray, FloatArray, int], alias: Alias | None
) -> Signal:
    steps, values, _ = series
    if alias is not None and alias.ln:
        with np.errstate(all="ignore"):
            values = np.log(values)
    if alias is not None and alias.scale != 1.0:
        values = values * alias.scale
    finite = np.abs(values) < LARGEST  # False for NaN
    return Signal(
        name=name,
        steps=steps[finite],
        values=values[finite],
        source_key=key,
        unit=alias.unit if alias else "",
        nonfinite_steps=tuple(int(step) for step in steps[~finite]),
    )


def _sum(name: str, parts: list[Signal]) -> Signal:
    steps = parts[0].steps
    for part in parts[1:]:
        steps = np.intersect1d(steps, part.steps)
    values = np.sum([part.values[np.isin(part.steps, steps)] for part in parts], axis=0)
    return Signal(name, steps, values, " + ".join(part.source_key for part in parts), unit_of(name))
