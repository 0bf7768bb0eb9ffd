"""Checkpoint folders: their step by name and what lies in them."""

from __future__ import annotations

from collections.abc import Mapping

from firstbad.tools.paths import Root
from firstbad.tools.readers.config import checkpoint_folders
from firstbad.tools.run import Checkpoint


def read_checkpoints(root: Root, global_steps: Mapping[str, int]) -> tuple[Checkpoint, ...]:
    """All `checkpoint-<step>` folders; `global_steps` is what their state files say."""
    found = []
    for folder in checkpoint_folders(root):
        inside = [f for f in root.files if f.name.startswith(folder + "/")]
        found.append(
            Checkpoint(
                step=int(folder.rpartition("-")[2]),
                path=root.path / folder,
                files=tuple(f.name[len(folder) + 1 :] for f in inside),
                state_step=global_steps.get(folder),
            )
        )
    return tuple(found)
