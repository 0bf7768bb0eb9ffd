"""The framework's version where a file states it, and what depends on it."""

from __future__ import annotations

import re

from firstbad.tools.paths import Root
from firstbad.tools.run import Config, Note

# The model card that TRL writes lists versions; nothing else of a README is read.
_STATED = (
    (r"README\.md", r"^- TRL: *(\d[\w.+-]*)"),
    (r"(?:.*/)?requirements\.txt", r"^trl==(\d[\w.+-]*)"),
)
_GROUP = "the mean of the within-group standard deviations (TRL before 0.27)"
_BATCH = "the standard deviation over the whole generation batch (TRL 0.27 and later)"


def read_version(root: Root) -> str | None:
    """The TRL version, or None."""
    for name, pattern in _STATED:
        for file in root.matching(name):
            text = (root.try_read(file, 2**20) or b"").decode("utf-8", "replace")
            if match := re.search(pattern, text, re.M):
                return match[1]
    return None


def reward_std_note(version: str | None, config: Config) -> Note:
    """What `reward_std` means: TRL changed it in 0.27."""
    if version and (match := re.match(r"(\d{1,9})\.(\d{1,9})", version)):
        text = _BATCH if (int(match[1]), int(match[2])) >= (0, 27) else _GROUP
    elif "multi_objective_aggregation" in config.values:  # a setting that came with 0.27
        text = _BATCH
    else:
        text = f"the version is not stated, so either {_BATCH} or {_GROUP}"
    return Note("meaning", f"`reward_std`: {text}")
