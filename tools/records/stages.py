"""Rows from stage to stage: the names of samples as generated, scored and trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.flight import FlightStep
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run


class StageRows(Dated):
    """Captured steps by what happens to their rows between stages; the onset is the first of them.

    Sampled: only captured steps are there.
    """

    n_steps: int
    """Captured steps that name their samples at generation and at scoring."""
    steps_reordered: int
    """The scored ones are the generated ones in another order."""
    shift: int | None
    """Places by which all rows move in those steps, where it is one number; else None."""
    steps_lost: int
    """A generated sample was never scored, though rows are kept before any filter or without one,
    or more were scored than generated."""
    steps_unscored: int
    """A trained sample was never scored."""
    steps_trained_twice: int
    """A sample stands several times among the trained ones: each counts in the baseline."""


@tool
def compare_stages(run: Run) -> Measured[StageRows]:
    """The order and the number of samples from generation to scoring to training, by their names.

    Training in another order than scoring is usual: batches are shuffled, and names go along.

    Cannot tell: whether scores in another order were joined again by name before they were used
    (independent judging tells); anything where the recorder was not given the names of a stage.
    """
    named = [one for one in run.flight if one.stages.generated and one.stages.scored]
    if not named:
        raise NoData("no captured step that names its samples at generation and at scoring")
    rows: list[tuple[Scalar, ...]] = []
    shifts: list[int | None] = []
    counts = Counter[str]()
    good: int | None = None
    for one in named:
        problems = _problems(one)
        counts.update(problems)
        if "reordered" in problems:
            shifts.append(_shift(one.stages.generated, one.stages.scored))
        if problems:
            rows.append((one.step, ", ".join(problems)))
        elif not rows:
            good = one.step
    wrong = {row[0] for row in rows}
    first = min((one.step for one in named if one.step in wrong), default=None)
    only = set(shifts)
    metrics = StageRows(
        n_steps=len(named),
        steps_reordered=counts["reordered"],
        shift=shifts[0] if len(only) == 1 else None,
        steps_lost=counts["lost"],
        steps_unscored=counts["unscored"],
        steps_trained_twice=counts["trained twice"],
        last_good_step=good,
        first_bad_step=first,
        from_start=first is not None and good is None,
        sampled=first is not None and good is not None,
    )
    text = f"{len(named)} captured steps name their samples: {len(rows)} change them between stages"
    return Measured(
        metrics,
        text,
        tables=(
            Table(
                title="steps whose samples change between stages",
                columns=("step", "what"),
                rows=tuple(rows[:20]),
                cut_rows=max(0, len(rows) - 20),
            ),
        )
        if rows
        else (),
        signal="names of the samples between stages",
    )


def _problems(one: FlightStep) -> list[str]:
    made, scored, trained = one.stages.generated, one.stages.scored, one.stages.trained
    found = []
    if len(made) == len(scored) and made != scored and sorted(made) == sorted(scored):
        found.append("reordered")
    missing, extra = set(made) - set(scored), set(scored) - set(made)
    if extra or len(scored) > len(made) or (missing and one.filters != "after"):
        found.append("lost")
    if trained and set(trained) - set(scored):
        found.append("unscored")
    if trained and max(Counter(trained).values()) > max(Counter(made).values()):
        found.append("trained twice")
    return found


def _shift(made: Sequence[str], scored: Sequence[str]) -> int | None:
    """Places by which each row moved, where it is the same for all; counted round the end."""
    place = {name: at for at, name in enumerate(made)}
    n = len(made)
    moves = {(at - place[name]) % n for at, name in enumerate(scored)}
    if len(place) < n or len(moves) != 1:
        return None
    move = moves.pop()
    return move if move <= n // 2 else move - n
