"""Where in the data a run goes on after a resume: are prompts drawn again that it has had?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.records.prompts import prompts_of_groups
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.segments import resumes

LOOKED_AT = 6
"""Steps after a resume that are compared, and fewest of them that tell."""
FEWEST = 3
ALIKE = 0.9
"""Share of the prompts of these steps that are those of an earlier stretch, in its order."""

Drawn = Mapping[int, frozenset[str]]
"""Step -> prompts that it drew."""


class DataPosition(Dated):
    """Prompts after a resume against those before it; the onset is the resume."""

    n_resumes: int
    """Resumes with prompts on both sides."""
    replayed_share: float
    """Of the prompts of the first three to six steps after a resume: those that one earlier
    stretch of steps drew, step by step in the same order; the most of all resumes and stretches."""
    replayed_from_step: int | None
    """First step of that stretch; None where no prompt comes again."""
    goes_round: bool | None
    """The steps before the resume repeat the steps before that stretch as well, or it follows the
    last prompts of a pass over the data: the order comes round by itself. None without a replay."""
    position_fell: bool | None
    """The recorded number of samples drawn is smaller after a resume than before; None where it is
    not recorded on both sides."""


@tool
def compare_data_position(run: Run) -> Measured[DataPosition]:
    """Prompts drawn after each resume, against every earlier stretch of as many steps.

    A data order that comes round by itself, pass after pass, repeats the steps before the resume as
    well. One that begins anew at the resume does not; where the run's first stretch comes again,
    new prompts later on show that the pass over the data was not over.

    Cannot tell: a position that moved forward (prompts that were never drawn); another order.
    """
    every = resumes(run)
    fell, fell_at = _position_fell(run, every)
    if not every and fell is None and run.last_step is not None:
        return Measured(_metrics(0, None, None, None), "no resume")
    if not run.rollouts and fell is None:
        raise NoData("no rollouts with their prompts, and no recorded position in the data")
    batches = list(run.rollouts.batches())
    drawn = {batch.step: frozenset(prompts_of_groups(batch)) for batch in batches}
    found = [one for step in every if (one := _replay(drawn, step)) is not None]
    if not found and fell is None:
        raise NoData(f"no resume with {FEWEST} steps of rollouts on both sides")
    worst = max(found, key=lambda one: (one.share, -one.source), default=None)
    metrics = _metrics(len(found), worst, fell, fell_at)
    text = f"{len(every)} resumes; prompts go on where they were"
    if worst is not None and worst.share >= ALIKE:
        text = (
            f"the steps from the resume at step {worst.resume} on draw the prompts of the steps "
            f"from {worst.source} on" + ("; their order comes round" if worst.round_ else "")
        )
    elif fell:
        text = "fewer samples count as drawn after a resume than before it"
    return Measured(metrics, text, signal="prompts after a resume")


class _Replay:
    def __init__(self, resume: int, source: int, share: float, round_: bool) -> None:
        self.resume, self.source, self.share, self.round_ = resume, source, share, round_


def _metrics(
    n_resumes: int, worst: _Replay | None, fell: bool | None, fell_at: int | None
) -> DataPosition:
    replayed = worst is not None and worst.share >= ALIKE
    bad = worst.resume if worst is not None and replayed and not worst.round_ else fell_at
    return DataPosition(
        n_resumes=n_resumes,
        replayed_share=round(worst.share, 6) if worst else 0.0,
        replayed_from_step=worst.source if worst and worst.share > 0 else None,
        goes_round=worst.round_ if worst and replayed else None,
        position_fell=fell,
        last_good_step=None if bad is None else bad - 1,
        first_bad_step=bad,
    )


def _replay(drawn: Drawn, resume: int) -> _Replay | None:
    """The earlier stretch that the steps after a resume repeat most."""
    after = [step for step in sorted(drawn) if step >= resume][:LOOKED_AT]
    before = [step for step in sorted(drawn) if step < resume]
    if len(after) < FEWEST or len(before) < FEWEST:
        return None
    best = (0.0, before[0])
    for source in before:
        repeated = size = known = 0
        for step in after:
            moved = source + step - after[0]
            if moved not in drawn or moved >= resume:
                continue
            repeated += len(drawn[moved] & drawn[step])
            size += len(drawn[step])
            known += 1
            if known >= FEWEST and repeated / size > best[0]:
                best = repeated / size, source
    return _Replay(resume, best[1], best[0], _round(drawn, before, after, best[1]))


def _round(drawn: Drawn, before: Sequence[int], after: Sequence[int], source: int) -> bool:
    """Whether the order comes round by itself.

    The steps before the resume repeat those before the source; or nothing lies before the source
    and every prompt that is ever drawn was drawn before the resume, so that a pass may have ended.
    """
    back = [step for step in before if step < source][-FEWEST:]
    pairs = [(a, after[0] - source + a) for a in back]
    known = [(a, b) for a, b in pairs if b in drawn and b < after[0]]
    if known:
        repeated = sum(len(drawn[a] & drawn[b]) for a, b in known)
        return repeated >= 0.5 * sum(len(drawn[b]) for _, b in known)
    old = frozenset().union(*(drawn[step] for step in before))
    later = frozenset().union(*(drawn[step] for step in drawn if step >= after[0]))
    return later <= old


def _position_fell(run: Run, every: Sequence[int]) -> tuple[bool | None, int | None]:
    """Whether the recorded data position is smaller after a resume than before it, and at which."""
    known = [(one.step, one.data_position) for one in run.flight]
    fell: dict[int, bool] = {}
    for resume in every:
        before = [at for step, at in known if step < resume and at is not None]
        after = [at for step, at in known if step >= resume and at is not None]
        if before and after:
            fell[resume] = after[0] < before[-1]
    if not fell:
        return None, None
    return any(fell.values()), next((step for step, bad in fell.items() if bad), None)
