"""What a preflight certified before the first step, and whether it holds for this run.

Field meanings are those of recorder/FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Certified = Literal["loss_numerics", "mask_construction", "accumulation", "trainer_repeatability"]
"""What a check before the first step can know. Nothing else is taken from a certificate."""


@dataclass(frozen=True)
class CertifiedCheck:
    """One check of a preflight."""

    name: Certified
    outcome: Literal["pass", "fail", "not_run"]
    measured: Mapping[str, float] = field(default_factory=dict)
    bound: Mapping[str, float] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Certificate:
    """Checks of a preflight, and in what the run differs from what they were made on."""

    made: str = ""
    checks: tuple[CertifiedCheck, ...] = ()
    differs: tuple[str, ...] = ()
    """Of `loss_code`, `config`, `versions`, `model_shape`: those that are other ones, or unknown,
    in any process of the run. Empty: the certificate holds for it."""

    def outcome(self, name: Certified) -> bool | None:
        """Whether a check passed; None where it was not made, or not on what runs here."""
        found = {check.outcome for check in self.checks if check.name == name}
        if self.differs or not found <= {"pass", "fail"} or not found:
            return None
        return found == {"pass"}
