"""Versions of what measures and judges."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

from firstbad import __version__

REPORTED = ("numpy", "pyarrow", "pydantic", "langgraph")
"""Packages whose versions a memo states."""


def versions() -> dict[str, str]:
    """Versions of what measures and judges."""
    found = {"firstbad": __version__, "python": python_version()}
    for name in REPORTED:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
