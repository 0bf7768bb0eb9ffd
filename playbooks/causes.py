"""The closed list of causes (`causes.yaml`): ids are a public contract, never renamed."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import yaml

from firstbad.playbooks.model import Cause

SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader, in C where the library was built with it."""


@cache
def causes() -> dict[str, Cause]:
    """All causes by id, in the order of the file."""
    text = (files("firstbad.playbooks") / "causes.yaml").read_text(encoding="utf-8")
    found = [Cause(id=key, **fields) for key, fields in yaml.load(text, Loader=SAFE).items()]
    return {cause.id: cause for cause in found}
