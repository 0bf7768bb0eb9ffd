"""What a preflight certified, where it was made on what runs here."""

from __future__ import annotations

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Table
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run


class Certificate(Metrics):
    """Checks made before the first step. None: not made, or not on what runs here."""

    n_checks: int
    key_agrees: bool
    """Loss code, settings, versions and model shape are those of every process of the run."""
    loss_numerics: bool | None
    """Passed."""
    mask_construction: bool | None
    accumulation: bool | None
    trainer_repeatability: bool | None


@tool
def read_certificate(run: Run) -> Measured[Certificate]:
    """What a preflight measured before the first step, if code, settings and versions are the same.

    Cannot tell: anything that comes with training: deliveries of weights, stale rollouts, drift,
    overflow. Nor whether the file is true.
    """
    found = run.flight.certificate
    if found is None:
        raise NoData("no certificate.json of a preflight in the record")
    metrics = Certificate(
        n_checks=len(found.checks),
        key_agrees=not found.differs,
        loss_numerics=found.outcome("loss_numerics"),
        mask_construction=found.outcome("mask_construction"),
        accumulation=found.outcome("accumulation"),
        trainer_repeatability=found.outcome("trainer_repeatability"),
    )
    table = Table(
        title="checks before the first step",
        columns=("check", "outcome", "measured", "bound"),
        rows=tuple(
            (
                check.name,
                check.outcome,
                ", ".join(f"{k} {number(v)}" for k, v in check.measured.items())[:200],
                ", ".join(f"{k} {number(v)}" for k, v in check.bound.items())[:200],
            )
            for check in found.checks
        ),
    )
    passed = [check.name for check in found.checks if check.outcome == "pass"]
    if found.differs:
        text = f"a preflight of something else, not used: other {', '.join(found.differs)}"
    else:
        text = f"preflight of the same code and settings passed: {', '.join(passed) or 'nothing'}"
    return Measured(metrics, text, tables=(table,) if found.checks else ())
