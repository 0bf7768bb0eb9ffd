"""Where a completion ends: read off the token ids, not off the framework's own mask."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from firstbad.tools.run import (
    COMPLETION,
    PADDING,
    PROMPT,
    SYSTEM,
    TOOL,
    BoolArray,
    Capture,
    IntArray,
    Run,
)


@dataclass(frozen=True)
class End:
    """Ends of the completions of one capture, R rows of T tokens."""

    real: BoolArray
    """(R, T) True up to and including the first stop token; all tokens where none stands."""
    stop_at: IntArray
    """(R,) position of the stop token that ends the row, or -1."""
    stops: frozenset[int]
    """Ids taken as stop tokens."""
    guessed: bool
    """True when no tokenizer or model config names them and they were read off the rows."""


def completion_end(run: Run, capture: Capture) -> End:
    """Find the end of each completion in a capture.

    A sampled pad token before the stop is a completion token; padding is what stands after.
    Where no stop token stands in a row, trailing tokens of the pad id are padding (a row cut at the
    cap, in a batch with longer rows).
    """
    key = "end", id(run.vocabulary)
    if key not in capture.derived:
        capture.derived[key] = _end(run, capture)
    return cast(End, capture.derived[key])


def _end(run: Run, capture: Capture) -> End:
    ids = np.asarray(capture.arrays["token_id"]).astype(np.int64)
    stops, guessed = _stops(run, capture, ids)
    is_stop: BoolArray = np.asarray(np.isin(ids, sorted(stops)))
    has: BoolArray = np.asarray(is_stop.any(axis=1))
    stop_at = np.where(has, is_stop.argmax(axis=1), -1).astype(np.int64)
    position = np.arange(ids.shape[1])
    real = np.where(has[:, None], position <= stop_at[:, None], True)
    pad = run.vocabulary.pad_id if run.vocabulary else None
    trailing = np.zeros_like(real)
    if pad is not None and pad not in stops:
        is_pad: BoolArray = np.asarray(ids == pad)
        trailing = np.flip(np.logical_and.accumulate(np.flip(is_pad, 1), axis=1), 1)
    source = sources(capture)
    if source is not None:
        if "source" not in capture.arrays:
            source = np.where(trailing, PADDING, source)
        return _by_source(End(real, stop_at, frozenset(stops), guessed), is_stop, source)
    real &= ~(trailing & ~has[:, None])
    return End(real, stop_at, frozenset(stops), guessed)


def sources(capture: Capture) -> IntArray | None:
    """(R, T) where each token comes from, as `source` says, or a mask over tool tokens; or None.

    A tool mask is 0 on what a tool returned, as TRL writes it.
    """
    ids = capture.arrays["token_id"]
    source = capture.arrays.get("source")
    if source is not None and source.shape == ids.shape:
        return np.asarray(source).astype(np.int64)
    own = capture.mask("tool_mask")
    if own is None or own.shape != ids.shape or own.all():
        return None
    inside = capture.mask("completion_mask")
    if inside is None or inside.shape != ids.shape:
        inside = np.ones_like(own)
    return np.where(~own & inside, TOOL, COMPLETION)


def pad_id(run: Run, beyond: npt.NDArray[np.generic]) -> int:
    """The pad id; where no file names it, the commonest of the ids behind a stop, else -1."""
    if run.vocabulary is not None and run.vocabulary.pad_id is not None:
        return run.vocabulary.pad_id
    values, times = np.unique(beyond, return_counts=True)
    return int(values[np.argmax(times)]) if len(values) else -1


def _by_source(end: End, is_stop: BoolArray, source: IntArray) -> End:
    """Ends where the origin of each token is known.

    A stop token ends what the policy says in one turn; after what a tool or user says, the next
    turn begins. What is sampled behind a stop of the same turn is not real.
    """
    made: BoolArray = np.asarray(source == COMPLETION)
    counted = (is_stop & made).cumsum(axis=1)
    before = counted - (is_stop & made)
    others = np.isin(source, (SYSTEM, PROMPT, TOOL))
    earlier = np.maximum.accumulate(np.where(others, counted, 0), axis=1)
    real: BoolArray = made & (before == earlier)
    last = real.shape[1] - 1 - np.argmax(real[:, ::-1], axis=1) if real.shape[1] else end.stop_at
    rows = np.arange(len(real))
    ended = real.any(axis=1) & is_stop[rows, last] if real.shape[1] else real.any(axis=1)
    return End(real, np.where(ended, last, -1).astype(np.int64), end.stops, end.guessed)


def _stops(run: Run, capture: Capture, ids: IntArray) -> tuple[set[int], bool]:
    if run.vocabulary is not None and run.vocabulary.eos_ids:
        return set(run.vocabulary.eos_ids), False
    mask = capture.mask("completion_mask")
    if mask is None or mask.shape != ids.shape:
        return set(), True
    ends = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
    last = Counter(int(ids[i, e]) for i, e in enumerate(ends) if mask[i].any())
    common = last.most_common(1)
    if not common or common[0][1] <= 0.5 * len(ids) or _is_said(ids == common[0][0], mask):
        return set(), True
    return {common[0][0]}, True


def _is_said(places: BoolArray, mask: BoolArray) -> bool:
    """Whether a token that most rows end in is one that they say again and again.

    A stop, or the padding behind it, stands at the end of a row only. (R, T) both.
    """
    places = places & mask
    others = np.flip(np.logical_or.accumulate(np.flip(mask & ~places, 1), axis=1), 1)
    wholly = places.any(axis=1) & ~(mask & ~places).any(axis=1) & (places.sum(axis=1) > 1)
    earlier = (places & others).any(axis=1)
    return bool((wholly | earlier).sum() > 0.5 * places.any(axis=1).sum())
