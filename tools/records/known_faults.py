"""What is known of the version that ran: faults that its settings meet, and what it does."""

from __future__ import annotations

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Table
from firstbad.tools.known_good import FACTS, Fault, all_met, known_good, version_of
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

FAULTS = "faults on record for this version"
"""Title of the table whose first column is the cause, and whose third says if settings meet it."""
MET, NOT_SAID = "they meet it", "they do not say"


class KnownFaults(Metrics):
    """Declared facts: nothing here was measured."""

    version_known: bool
    """A file states the framework's version."""
    n_listed: int
    """Faults on record of this framework, and of packages around it that files name, whatever the
    version."""
    n_met: int
    """Of them: the version had it, and the settings are those under which it does harm."""
    n_settings_unknown: int
    """Of them: the version had it, and no file says whether the settings are those."""
    engine_logprobs_unused: bool | None
    """The loss takes no log-probs of the engine; None where no statement fits."""
    old_logprobs_recomputed: bool | None
    """The trainer computes old log-probs in a pass of their own."""
    ratio_one_by_construction: bool | None
    """Old log-probs are the detached current ones."""


@tool
def check_known_faults(run: Run) -> Measured[KnownFaults]:
    """Faults that are on record for the framework's version and settings, each with its source.

    The record is `playbooks/known_good.yaml`. A development or candidate version of the release
    that ended a fault may have it or not: nothing is claimed of it, nor where the version is
    unknown.

    Cannot tell: whether the fault acts in this run; a patch of the user's own; faults that nobody
    has put on record.
    """
    book, package, values = known_good(), run.framework, run.config.values
    listed = [f for f in book.faults if f.package == package or _is_around(f, run)]
    known = version_of(run, package)
    around = {f.package: run.versions[f.package] for f in listed if f.package != package}
    if known.exact is None and known.at_least is None and not around:
        raise NoData(
            "no file states the framework's version (a model card's `- TRL: 1.16.0`, or "
            "requirements.txt)"
        )
    of_version = [f for f in listed if f.versions.hold(version_of(run, f.package))]
    met = [fault for fault in of_version if all_met(fault.bites_if, values)]
    unknown = [fault for fault in of_version if all_met(fault.bites_if, values) is None]
    facts = {
        s.states: s
        for s in book.statements
        if s.package == package and s.versions.hold(known) and all_met(s.when, values)
    }
    metrics = KnownFaults(
        version_known=known.exact is not None,
        n_listed=len(listed),
        n_met=len(met),
        n_settings_unknown=len(unknown),
        **{fact: True if fact in facts else None for fact in FACTS},
    )
    named = {package: f"{package} {known.exact or f'{known.at_least} or later'}"}
    if known.exact is None and known.at_least is None:
        named[package] = f"{package} of unknown version"
    named |= {name: f"{name} {version}" for name, version in around.items()}
    rows = [_row(fault, MET) for fault in met]
    rows += [_row(fault, NOT_SAID) for fault in unknown]
    tables = [
        Table(title=FAULTS, columns=("cause", "fault", "settings", "source"), rows=tuple(rows)),
        Table(
            title="what the version does",
            columns=("fact", "statement", "source"),
            rows=tuple((fact, s.says, s.source) for fact, s in facts.items()),
        ),
    ]
    return Measured(
        metrics,
        f"{', '.join(named.values())}: {len(met)} of {len(listed)} faults on record fit version "
        "and settings",
        tables=tuple(table for table in tables if table.rows),
        sources=run.version_sources,
        quote=" ".join(_told(fault, named[fault.package]) for fault in met),
    )


def _is_around(fault: Fault, run: Run) -> bool:
    """Whether it is one of a package around the framework, which a file of the run names."""
    return fault.wraps == run.framework and fault.package in run.versions


def _row(fault: Fault, settings: str) -> tuple[str, str, str, str]:
    return fault.cause, fault.says, settings, fault.source


def _told(fault: Fault, named: str) -> str:
    return (
        f"On record for {named} with such settings, and not measured here: {fault.says} "
        f"(`{fault.cause}`, {fault.source})."
    )
