"""Changing modules when they have been imported, whoever imports them and whenever."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[Any], None]


class Finder:
    """First on `sys.meta_path`: finds nothing itself, but has a word with some modules' loaders."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        """`changes`: by name of a module, what is called with it once it has been imported."""
        self._changes = changes
        self._here = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have, with a loader that calls the change."""
        if name not in self._changes or getattr(self._here, "asking", False):
            return None
        self._here.asking = True  # a finder may ask the others, and so come back here
        try:
            spec = self._found(name, path, target)
        finally:
            self._here.asking = False
        if spec is not None and spec.loader is not None:
            with suppress(Exception):  # a loader that can't be changed imports as ever
                _called_after(spec.loader, self._changes[name])
        return spec

    def _found(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and (find := getattr(finder, "find_spec", None)):
                spec: ModuleSpec | None = find(name, path, target)
                if spec is not None:
                    return spec
        return None


def _called_after(loader: Any, change: Change) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        with suppress(AttributeError):
            del loader.exec_module  # the loader is as it was from here on
        original(module)
        _quietly(change, module)

    loader.exec_module = exec_module


def watch(changes: Mapping[str, Change]) -> None:
    """Have modules changed: those that are there at once, others when they are imported."""
    for name, change in changes.items():
        if name in sys.modules:
            _quietly(change, sys.modules[name])
    sys.meta_path.insert(0, Finder(changes))


def _quietly(change: Change, module: Any) -> None:
    with suppress(Exception):  # an import must never fail for what is recorded
        change(module)
