"""`tokens.safetensors` of a record: ragged rows, as the padded arrays that tools read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import numpy as np

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File
from firstbad.tools.readers.tensors import MAX_NUMBERS, Array, Stored, read_stored, safe_entries
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
_OF_ENGINE = ("engine_token_id", "engine_offsets")
MAX_ROWS = 2**20


def read_ragged(step: int, file: File) -> Capture:
    """Split each row into prompt and completion, and pad both to one width.

    Read at once are the offsets and what tells prompts from completions; other arrays when a tool
    asks for them.

    Prompt: what stands before the first token that the policy sampled (or a tool returned); its
    arrays have `prompt_` before their names. Where there is no `source`, what has a log-prob of
    the engine was sampled; where that is missing too, all of a row counts as completion. Places
    that a short row does not have: source 0, masks 0, other numbers NaN or 0.

    Raises:
        UserError: the offsets do not describe rows of these arrays; or rows begin with tokens that
            are not trained or not attended to, and nothing tells whether these are a prompt.
    """
    stored = safe_entries(file)
    starts = _offsets(file, _read(file, stored, "offsets"))
    total = int(starts[-1])
    flat = {n for n, one in stored.items() if one.shape == (total,)} - set(_OF_ENGINE)
    flat.discard("offsets")
    if not flat:  # also: a total that no array bears out must not be allocated
        raise UserError(f"`{file.name}`: no array has the {total:,} tokens of its offsets")
    left = sorted(stored.keys() - flat - {*_OF_ENGINE, "offsets"})
    if "source" in flat:
        source = _read(file, stored, "source")
    else:
        told = [n for n in ("logp_engine", "attention_mask", "loss_mask") if n in flat]
        source = _told(file, {n: _read(file, stored, n) for n in told}, starts)
    border = _borders(source, starts)
    if not (border < starts[1:]).any():
        raise UserError(f"`{file.name}` has no token that was sampled")
    after = _Padding(file, border, starts[1:])
    before = _Padding(file, starts[:-1], border)
    made = after.of(source)
    held: dict[str, Array] = {"source": made, "completion_mask": made != PADDING}
    held["prompt_source"] = before.of(source)
    if "token_id" in flat:
        held["prompt_mask"] = np.isin(held["prompt_source"], (SYSTEM, PROMPT))
    named = Later(held)
    for name in sorted(flat - {"source"}):
        of_prompt = name in _OF_PROMPT or name.startswith("loss_mask.")
        sides = {name: after, **({f"prompt_{name}": before} if of_prompt else {})}
        named.add(sides, _sides_of(file, stored[name], sides, made), stored[name].dtype)
    ends = _engine_ends(file, stored, len(starts))
    if ends is not None:
        rows = _Padding(file, ends[:-1], ends[1:])
        sides = {"engine_token_id": rows}
        one = stored["engine_token_id"]
        named.add(sides, _sides_of(file, one, sides, made), one.dtype)
    elif _OF_ENGINE[0] in stored:
        left.append(_OF_ENGINE[0])
    dtypes = {n: str(a.dtype) for n, a in held.items()}
    dtypes |= {n: stored[n.removeprefix("prompt_")].dtype for n in named if n not in held}
    if "source" in flat:
        dtypes |= dict.fromkeys(("source", "prompt_source"), stored["source"].dtype)
    return Capture(step, named, dtypes, tuple(left))


class Later(Mapping[str, Array]):
    """Arrays by name, each read when it is first asked for."""

    def __init__(self, held: dict[str, Array]) -> None:
        """`held` are there already."""
        self._held = held
        self._makers: dict[str, Callable[[], dict[str, Array]]] = {}
        self.nbytes = sum(array.nbytes for array in held.values())
        """Of all arrays, once they are read."""

    def add(
        self, sides: Mapping[str, _Padding], maker: Callable[[], dict[str, Array]], dtype: str
    ) -> None:
        """Names that one reading gives, and how they are laid out."""
        for name, layout in sides.items():
            self._makers[name] = maker
            width = 4 if dtype == "bfloat16" else np.dtype(dtype).itemsize
            self.nbytes += layout.size * width

    def __getitem__(self, name: str) -> Array:
        """One array; KeyError when there is none."""
        if name not in self._held:
            self._held |= self._makers[name]()
        return self._held[name]

    def __contains__(self, name: object) -> bool:
        """Without reading it."""
        return name in self._held or name in self._makers

    def __iter__(self) -> Iterator[str]:
        """Names."""
        return iter(dict.fromkeys([*self._makers, *self._held]))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._makers.keys() | self._held.keys())


def _sides_of(
    file: File, one: Stored, sides: Mapping[str, _Padding], made: Array
) -> Callable[[], dict[str, Array]]:
    def read() -> dict[str, Array]:
        values = read_stored(file, one)
        blank = -1 if one.name in _OF_ENGINE else 0
        found = {side: layout.of(values, blank) for side, layout in sides.items()}
        if one.name == "advantage":
            found["advantage"] = _by_row(found["advantage"], made == COMPLETION)
        return found

    return read


def _read(file: File, stored: Mapping[str, Stored], name: str) -> Array:
    if name not in stored:
        raise UserError(f"`{file.name}` has no `{name}` of its rows")
    return read_stored(file, stored[name])


def _engine_ends(file: File, stored: Mapping[str, Stored], n_starts: int) -> IntArray | None:
    """(R+1,) where the engine's rows begin; None where it has none, or they do not fit."""
    ids, offsets = _OF_ENGINE
    if ids not in stored or len(stored[ids].shape) != 1:
        return None
    ends = _offsets(file, _read(file, stored, offsets))
    return ends if len(ends) == n_starts and ends[-1] == stored[ids].size else None


def _offsets(file: File, found: Array) -> IntArray:
    if found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
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
    """Slices of a flat array as rows of one width; `size` numbers in all."""

    def __init__(self, file: File, begins: IntArray, ends: IntArray) -> None:
        lengths = ends - begins
        width = int(lengths.max(initial=0))
        if len(lengths) * width > MAX_NUMBERS:
            raise UserError(f"`{file.name}`: {len(lengths):,} rows of {width:,} tokens, too many")
        at = np.arange(width)
        self._there = at < lengths[:, None]
        self.size = self._there.size
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
