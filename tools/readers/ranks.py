"""One record of several processes: what each rank wrote of a step, in the order of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.tensors import MAX_NUMBERS, Array
from firstbad.tools.run import Capture

Files = Mapping[str, File]
"""Files of one step of one rank, by name."""
ByRank = Mapping[int, Files]
_KEPT = re.compile(r"(?:ranks/(\d{1,6})/)?(steps|ring)/(\d{1,15})/([^/]+)")
_OWN = re.compile(r"(?:steps|ring|ranks)/.*|\.lock|keeps\.jsonl", re.S)
"""What belongs to a record and is no table of metrics."""


def own_files(root: Root, folder: str) -> set[str]:
    """Names of files of a record that nothing else should read."""
    at = len(folder)
    return {f.name for f in root.files if f.name.startswith(folder) and _OWN.fullmatch(f.name[at:])}


def steps_of(root: Root, folder: str) -> tuple[dict[int, ByRank], set[int]]:
    """Files of each step by rank, and which steps no rank has kept: those are still in the ring.

    A step that a rank has in both places counts once, as it was kept. What was not finished has
    another name.
    """
    kept: dict[int, dict[int, dict[str, File]]] = {}
    held: dict[int, dict[int, dict[str, File]]] = {}
    for file in root.files:
        if not file.name.startswith(folder) or not (m := _KEPT.fullmatch(file.name[len(folder) :])):
            continue
        place = kept if m[2] == "steps" else held
        place.setdefault(int(m[3]), {}).setdefault(int(m[1] or 0), {})[m[4]] = file
    found: dict[int, ByRank] = {}
    for step in sorted({*kept, *held}):
        by_rank = {**held.get(step, {}), **kept.get(step, {})}
        found[step] = {rank: by_rank[rank] for rank in sorted(by_rank)}
    return found, held.keys() - kept.keys()


def in_ranks(files: ByRank, name: str) -> Iterator[tuple[int, File]]:
    """The ranks that have a file of a step, and that file.

    Rows of rollouts and of token arrays belong together: of ranks that lack one of the two, where
    others have both, neither counts.
    """
    pair = ("rollouts.jsonl", "tokens.safetensors")
    both = [rank for rank, of in files.items() if all(one in of for one in pair)]
    for rank, of in files.items():
        if name in of and not (name in pair and both and rank not in both):
            yield rank, of[name]


def joined(captures: Sequence[Capture]) -> Capture:
    """Captures of several ranks as one: the rows of the second behind those of the first.

    Raises:
        UserError: rows of one rank and tokens of another make it too large.
    """
    if len(captures) == 1:
        return captures[0]
    first = captures[0]
    for name in ("completion_mask", "prompt_source"):
        _fitting([c.arrays[name] for c in captures])
    names = [n for n in first.arrays if all(n in c.arrays for c in captures)]
    left = {n for c in captures for n in (*c.arrays, *c.unmapped)} - set(names)
    return Capture(
        first.step,
        _Joined([c.arrays for c in captures], names),
        {n: d for n, d in first.storage_dtypes.items() if n in names},
        tuple(sorted(left)),
        compute_dtypes=first.compute_dtypes,
    )


class _Joined(Mapping[str, Array]):
    """Arrays of several captures by name, each joined when it is first asked for."""

    def __init__(self, parts: Sequence[Mapping[str, Array]], names: Sequence[str]) -> None:
        self._parts, self._names = parts, dict.fromkeys(names)
        self._made: dict[str, Array] = {}
        self.nbytes = 2 * sum(getattr(part, "nbytes", 0) for part in parts)
        """At most: of the parts and of what is made of them."""

    def __getitem__(self, name: str) -> Array:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = _behind_one_another(name, [part[name] for part in self._parts])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _fitting(arrays: Sequence[Array]) -> None:
    rows, width = sum(map(len, arrays)), max(array.shape[-1] for array in arrays)
    if rows * width > MAX_NUMBERS:
        raise UserError(f"{rows:,} rows of {width:,} tokens in all ranks together, too many")


def _behind_one_another(name: str, arrays: Sequence[Array]) -> Array:
    """(R,) or (R, T): places that shorter rows do not have are as `read_ragged` leaves them."""
    if all(array.ndim == 1 for array in arrays):
        return np.concatenate(arrays)
    # One number for each row where the others have one for each token.
    wide = [a if a.ndim == 2 else np.repeat(a[:, None], 1, axis=1) for a in arrays]
    width = max(array.shape[1] for array in wide)
    if name == "engine_token_id":
        _fitting(wide)
    kind = np.result_type(*wide)
    blank = np.nan if kind.kind == "f" else -1 if name == "engine_token_id" else 0
    out = np.full((sum(map(len, wide)), width), blank, kind)
    at = 0
    for array, given in zip(wide, arrays, strict=True):
        columns = width if given.ndim == 1 else array.shape[1]
        out[at : at + len(array), :columns] = array
        at += len(array)
    return out
