"""How a run ended: by an exception, in order, or with nothing said of it."""

from __future__ import annotations

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Event, Run

QUOTED = 160
"""Characters of an exception that are quoted."""
WITHIN = 1
"""Steps before the last one at which an exception may stand and still have ended the run."""


class Ending(Metrics):
    """The last step, and what is known of why no other followed."""

    last_step: int
    planned_steps: int | None
    """Steps that the run was to make; None where no setting says."""
    plan_known: bool
    steps_left: int | None
    """Of these: not made."""
    by_error: bool
    """An exception ended it: one stands at the last step or behind it, and nothing follows."""
    error_step: int | None
    """Step in which it was raised, or after which; None without one."""
    closed: bool | None
    """The log or the record says that the run ended, or the record that it was not closed: killed,
    or still at work; None where nothing says."""
    closing_known: bool
    """Something says whether it was closed."""


@tool
def find_ending(run: Run) -> Measured[Ending]:
    """How the run ended: by an exception, in order, or not told.

    An exception counts where it is what the record or the log ends with, at the last step or
    behind it.

    Cannot tell: why a process was killed from outside, and whether one without a word still works.
    """
    last = run.last_step
    if last is None:
        raise NoData("no step is recorded, so that none is the last one")
    raised = _ended_by(run, last)
    planned = run.config.number("max_steps")
    steps = int(planned) if planned and planned >= last else None
    closed = _closed(run)
    told = _told(raised, last, steps) if raised else ""
    return Measured(
        Ending(
            last_step=last,
            planned_steps=steps,
            plan_known=steps is not None,
            steps_left=None if steps is None else steps - last,
            by_error=raised is not None,
            error_step=None if raised is None else raised.step if raised.step else last,
            closed=closed,
            closing_known=closed is not None,
        ),
        f"the run ended {told}" if told else _otherwise(last, steps, closed),
        quote=told,
    )


def _ended_by(run: Run, last: int) -> Event | None:
    """The exception that ended the run; of several processes that of the first is told."""
    found = [e for e in run.events if e.ends and (e.step is None or e.step >= last - WITHIN)]
    return min(found, key=lambda e: ("ranks/" in e.source, e.source), default=None)


def _told(raised: Event, last: int, planned: int | None) -> str:
    """When and by what, to stand after "the run ended"."""
    of = f" of {planned}" if planned else ""
    inside = raised.step == last + 1 and (planned is None or last < planned)
    when = f"in step {last + 1}{of}" if inside else f"after step {last}{of}"
    said = "".join(c for c in " ".join(raised.text.split()) if c.isprintable() and c != "`")
    if len(said) > QUOTED:
        said = said[:QUOTED].rpartition(" ")[0] + " …"
    return f"{when} with `{said}` ({raised.source})"


def _closed(run: Run) -> bool | None:
    if any(e.kind == "end" for e in run.events):
        return True
    return False if any(n.code == "not_closed" for n in run.notes) else None


def _otherwise(last: int, planned: int | None, closed: bool | None) -> str:
    how = {
        True: "the run ended in order",
        False: "the record was not closed: killed, or still at work",
        None: "nothing says how the run ended",
    }[closed]
    of = f" of {planned}" if planned else ""
    return f"no exception is recorded; {how}; last step {last}{of}"
