"""A case: a run of the synthetic trainer, and the verdict that it must end in.

`python -m synthetic.cases NAME FOLDER` in `tests/` writes one to a folder.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import synthetic
from synthetic.trainer import Trainer


@dataclass(frozen=True)
class Case:
    """What is run, and what must come out."""

    name: str
    """Neutral: a letter for the layer and a number; nothing that a tool reads tells the fault."""
    make: Callable[[], Trainer]
    outcome: Literal["incident", "healthy", "undetermined"]
    cause: str | None = None
    """Leading cause of an incident."""
    first_bad: tuple[int, int] | None = None
    """Steps, both included, that the first bad step must lie between; None: not judged."""
    checks: Mapping[str, str] = field(default_factory=dict)
    """`layer.check`: its outcome."""
    twin_of: str | None = None
    """Cause that this case looks like and must not end in."""
    files: Callable[[Path], object] | None = None
    """What else is done to the folder: files that a trainer leaves besides, or takes away."""
    complaint: str = ""
    says: str = ""
    """Words that the headline must hold."""

    def write(self, folder: Path) -> Path:
        """Run it; the record lies in the folder."""
        self.make().run(folder)
        if self.files is not None:
            self.files(folder)
        return folder


@cache
def all_cases() -> dict[str, Case]:
    """Every case by name, in the order of the files."""
    found: dict[str, Case] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(synthetic.__path__)):
        if module.startswith("cases_"):
            for case in importlib.import_module(f"synthetic.{module}").CASES:
                assert case.name not in found, f"two cases are called {case.name}"
                found[case.name] = case
    return found


if __name__ == "__main__":
    print(all_cases()[sys.argv[1]].write(Path(sys.argv[2])))
