"""Which column of a table is the optimizer step, and what its spacing looks like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from firstbad.tools.paths import Root
from firstbad.tools.readers.log import step_number
from firstbad.tools.run import IntArray

# W&B's `_step` counts calls of log(), so it comes last.
STEP_KEYS = (
    "train/global_step",
    "trainer/global_step",
    "training/global_step",
    "global_step",
    "step",
    "Step",
    "global_step/max_steps",
    "train_step",
    "training_step",
    "iteration",
    "iter",
    "update",
    "_step",
)


def step_key(rows: Sequence[Mapping[str, object]]) -> str | None:
    """The step column of these rows, or None."""
    for key in STEP_KEYS:
        if any(key in row and step_number(row[key]) is not None for row in rows):
            return key
    return None


def note_folders(root: Root, what: str, names: Sequence[str]) -> None:
    """Say when files of several folders were read as one run: they might be several runs."""
    folders = sorted({name.rpartition("/")[0] or "." for name in names})
    if len(folders) > 1:
        listed = ", ".join(folders[:5]) + (", ..." if len(folders) > 5 else "")
        root.note("folders_merged", f"{what} of {len(folders)} folders are read as one: {listed}")


def note_gaps(root: Root, name: str, steps: IntArray) -> None:
    """Say where steps are missing or the log interval changes.

    The first and the last distance are left out: many trainers log step 1 and the last step too.
    """
    distances = np.diff(steps)[1:-1]
    if len(distances) < 3:
        return
    usual = Counter(distances.tolist()).most_common(1)[0][0]
    odd = np.flatnonzero(distances != usual)
    if not len(odd):
        return
    changed = [int(i) for i in odd if _lasts(distances, int(i))]
    if changed:
        at = int(steps[changed[0] + 1])
        text = f"the log interval changes at step {at}, to {distances[changed[0]]}"
        root.note("log_interval", f"`{name}`: {text}; most often it is {usual}")
        return
    wide = [int(i) for i in odd if distances[i] > usual]
    if wide:
        missing = int(sum(distances[i] // usual - 1 for i in wide))
        after = int(steps[wide[0] + 1])
        root.note("steps_missing", f"`{name}`: {missing} steps missing, the first after {after}")


def _lasts(distances: IntArray, at: int) -> bool:
    """Whether a distance is kept for three rows: a new interval rather than a gap."""
    here = distances[at : at + 3]
    return len(here) == 3 and bool(np.all(here == here[0]))
