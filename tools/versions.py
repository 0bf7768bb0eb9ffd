"""Whether a version lies in a range; what a development or candidate version leaves open."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class Known:
    """What is known of the version of a package: the version itself, or the least it can be."""

    exact: str | None = None
    at_least: str | None = None
    """From a setting that came with that version; read only where there is no `exact`."""


def parsed(text: str | None) -> Version | None:
    """A version without its local part (`2.4+cu121` is 2.4); None where it is not one."""
    if text is None:
        return None
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return None


def reaches(known: Known, bound: str) -> bool | None:
    """Whether the version is `bound` or later; None where that cannot be told.

    `1.9.1.dev0` and `1.9.1rc1` may hold what 1.9.1 brought, or not yet.
    """
    limit = Version(bound)
    if (version := parsed(known.exact)) is None:
        least = None if known.exact else parsed(known.at_least)
        return True if least is not None and least >= limit else None
    if version.is_prerelease and _release(version) == _release(limit):
        return None
    return version >= limit


def is_one_of(known: Known, reported: tuple[str, ...]) -> bool | None:
    """True for a version that begins as one of these do (`0.15` holds 0.15.2); else None.

    A report says nothing of the versions beside its own.
    """
    version = parsed(known.exact)
    if version is None or version.is_prerelease:
        return None
    release = version.release
    starts = [Version(text).release for text in reported]
    return True if any(release[: len(s)] == s for s in starts) else None


def _release(version: Version) -> tuple[int, ...]:
    """1.9 and 1.9.0 are the same release."""
    parts = list(version.release)
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
