"""Where a completion ends: read off the token ids, not off the framework's own mask."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from firstbad.tools.run import COMPLETION, TOOL, BoolArray, Capture, IntArray, Run


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
    ids = np.asarray(capture.arrays["token_id"]).astype(np.int64)
    stops, guessed = _stops(run, capture, ids)
    is_stop: BoolArray = np.asarray(np.isin(ids, sorted(stops)))
    has: BoolArray = np.asarray(is_stop.any(axis=1))
    stop_at = np.where(has, is_stop.argmax(axis=1), -1).astype(np.int64)
    position = np.arange(ids.shape[1])
    real = np.where(has[:, None], position <= stop_at[:, None], True)
    source = capture.arrays.get("source")
    if source is not None and source.shape == ids.shape:
        return _by_source(End(real, stop_at, frozenset(stops), guessed), is_stop, source)
    pad = run.vocabulary.pad_id if run.vocabulary else None
    if pad is not None and pad not in stops:
        is_pad: BoolArray = np.asarray(ids == pad)
        trailing = np.flip(np.logical_and.accumulate(np.flip(is_pad, 1), axis=1), 1)
        real &= ~(trailing & ~has[:, None])
    return End(real, stop_at, frozenset(stops), guessed)


def _by_source(end: End, is_stop: BoolArray, source: npt.NDArray[np.generic]) -> End:
    """Ends where the origin of each token was captured.

    A dialogue goes on behind the stop token of a turn: there, what was sampled is real. In a row
    of one turn nothing is, whatever the source says of it.
    """
    made: BoolArray = np.asarray(source == COMPLETION)
    turns: BoolArray = np.asarray((source == TOOL).any(axis=1))
    real = np.where(turns[:, None], made, made & end.real)
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
    return ({common[0][0]} if common and common[0][1] > 0.5 * len(ids) else set()), True
