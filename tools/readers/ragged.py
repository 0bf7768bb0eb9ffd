"""`tokens.safetensors` of a record: ragged rows, as the padded arrays that tools read."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File
from firstbad.tools.readers.tensors import MAX_NUMBERS, Array, read_arrays
from firstbad.tools.run import (
    COMPLETION,
    PADDING,
    PROMPT,
    SYSTEM,
    TOOL,
    BoolArray,
    Capture,
    IntArray,
)

_OF_PROMPT = ("token_id", "position", "attention_mask", "loss_mask", "source")
MAX_ROWS = 2**20


def read_ragged(step: int, file: File) -> Capture:
    """Split each row into prompt and completion, and pad both to one width.

    Prompt: what stands before the first token that the policy sampled (or a tool returned); its
    arrays have `prompt_` before their names. Where there is no `source`, what has a log-prob of
    the engine was sampled; where that is missing too, all of a row counts as completion. Places
    that a short row does not have: source 0, masks 0, other numbers NaN or 0.

    Raises:
        UserError: the offsets do not describe rows of these arrays; or rows begin with tokens that
            are not trained or not attended to, and nothing tells whether these are a prompt.
    """
    arrays, stored = read_arrays(file)
    starts = _offsets(file, arrays.pop("offsets", None))
    total = int(starts[-1])
    engine = arrays.pop("engine_token_id", None)
    engine_offsets = arrays.pop("engine_offsets", None)
    flat = {n: a for n, a in arrays.items() if a.ndim == 1 and len(a) == total}
    if not flat:  # also: a total that no array bears out must not be allocated
        raise UserError(f"`{file.name}`: no array has the {total:,} tokens of its offsets")
    left = sorted(set(arrays) - set(flat))
    source = flat["source"] if "source" in flat else _told(file, flat, starts)
    border = _borders(source, starts)
    if not (border < starts[1:]).any():
        raise UserError(f"`{file.name}` has no token that was sampled")
    after = _Padding(file, border, starts[1:])
    before = _Padding(file, starts[:-1], border)
    named: dict[str, Array] = {}
    for name, values in {**flat, "source": source}.items():
        named[name] = after.of(values)
        if name in _OF_PROMPT or name.startswith("loss_mask."):
            named[f"prompt_{name}"] = before.of(values)
    if "prompt_token_id" in named:
        named["prompt_mask"] = np.isin(named["prompt_source"], (SYSTEM, PROMPT))
    named["completion_mask"] = named["source"] != PADDING
    if "advantage" in named:
        named["advantage"] = _by_row(named["advantage"], named["source"] == COMPLETION)
    if engine is not None and engine.ndim == 1:
        ends = _offsets(file, engine_offsets)
        if len(ends) == len(starts) and ends[-1] == len(engine):
            named["engine_token_id"] = _Padding(file, ends[:-1], ends[1:]).of(engine, blank=-1)
        else:
            left.append("engine_token_id")
    dtypes = {n: stored.get(n.removeprefix("prompt_"), str(a.dtype)) for n, a in named.items()}
    return Capture(step, named, dtypes, tuple(left))


def _offsets(file: File, found: Array | None) -> IntArray:
    if found is None or found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
        raise UserError(f"`{file.name}` has no offsets of its rows")
    if len(found) > MAX_ROWS:
        raise UserError(f"`{file.name}` has more than {MAX_ROWS:,} rows")
    starts = found.astype(np.int64)
    if starts[0] != 0 or (np.diff(starts) < 0).any():
        raise UserError(f"`{file.name}`: the offsets of its rows do not ascend from 0")
    return starts


def _told(file: File, flat: Mapping[str, Array], starts: IntArray) -> Array:
    """(N,) where tokens come from, by the engine's log-probs: it gives them for what it sampled."""
    engine = flat.get("logp_engine")
    mask = flat.get("attention_mask")
    seen: BoolArray = np.ones(int(starts[-1]), bool) if mask is None else np.asarray(mask != 0)
    sampled = seen if engine is None else np.isfinite(np.asarray(engine, np.float64))
    if engine is not None and sampled.any() and not sampled.all():
        found = np.where(sampled, COMPLETION, np.where(seen, PROMPT, PADDING)).astype(np.uint8)
        for start, end in pairwise(starts.tolist()):
            places = start + np.flatnonzero(sampled[start:end])
            if len(places):  # between two sampled tokens stands what a tool returned
                inside = found[places[0] : places[-1]]
                inside[inside == PROMPT] = TOOL
                found[places[-1] + 1 : end] = PADDING
        return found
    trained = flat.get("loss_mask")
    used = seen if trained is None else seen & np.asarray(trained != 0)
    first = starts[:-1][np.diff(starts) > 0]
    some = np.logical_or.reduceat(used, first) if len(first) else used[:0]
    if (some & ~used[first]).any():
        raise UserError(f"`{file.name}` has no `source` that tells prompts from completions")
    return np.full(int(starts[-1]), COMPLETION, np.uint8)


def _borders(source: Array, starts: IntArray) -> IntArray:
    """(R,) where the completion of each row begins."""
    borders = starts[1:].copy()
    inside = ~np.isin(source, (PADDING, SYSTEM, PROMPT))
    for row, (start, end) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        made = inside[start:end]
        if made.any():
            borders[row] = start + int(made.argmax())
    return borders


class _Padding:
    """Slices of a flat array as rows of one width."""

    def __init__(self, file: File, begins: IntArray, ends: IntArray) -> None:
        lengths = ends - begins
        width = int(lengths.max(initial=0))
        if len(lengths) * width > MAX_NUMBERS:
            raise UserError(f"`{file.name}`: {len(lengths):,} rows of {width:,} tokens, too many")
        at = np.arange(width)
        self._there = at < lengths[:, None]
        self._from = (begins[:, None] + at)[self._there]

    def of(self, values: Array, blank: float = 0) -> Array:
        fill = np.nan if values.dtype.kind == "f" else blank
        out = np.full(self._there.shape, fill, values.dtype)
        out[self._there] = values[self._from]
        return out


def _by_row(values: Array, made: Array) -> Array:
    """(R,) where each row has one advantage for all that was sampled, else as it is."""
    numbers = np.asarray(values, np.float64)
    low = np.where(made, numbers, np.inf).min(axis=1, initial=np.inf)
    high = np.where(made, numbers, -np.inf).max(axis=1, initial=-np.inf)
    if not (low == high).all():
        return values
    return np.asarray(low)
