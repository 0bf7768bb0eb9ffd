"""Learning rate against its schedule, across resumes."""

from __future__ import annotations

import math

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Table
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, FloatArray, IntArray, Run
from firstbad.tools.segments import HeldToSettings, resumes

FEWEST = 3
OF_THE_RATE = ("learning_rate", "lr_scheduler_type", "max_steps", "warmup_ratio", "warmup_steps")
JUMP = 1.5
"""Factor between neighbouring steps beyond which a change is no decay."""


class Schedule(HeldToSettings):
    """Logged learning rate against the configured one."""

    n_steps: int
    expected_known: bool
    """The config names a schedule that this tool can compute."""
    largest_factor: float
    """Largest logged over expected rate (or its inverse), after the warm-up."""
    jump_factor: float
    """Largest factor between neighbouring logged rates after the warm-up, up or down."""
    jumps_up: bool | None
    rate_before: float | None
    rate_after: float | None
    configured: float | None
    share_off: float
    """Of steps whose rate differs from the schedule by more than 5 % (0 where it is unknown)."""
    late_start_steps: int
    """Steps with a rate of 0 before the schedule begins, beyond those that it holds itself."""
    settings_fit_after: bool | None
    """The configured schedule is that of the steps after the jump: the settings are of the part of
    the run that begins there. None without a jump or a known schedule."""
    at_resume: bool
    """A resume stands within one step of the first deviation."""


@tool
def check_learning_rate(run: Run) -> Measured[Schedule]:
    """Logged learning rate against the configured schedule, and against itself.

    Schedules computed: constant, constant with warm-up, linear, cosine (Hugging Face definitions;
    the rate logged at step s is the one used in that step, s - 1 scheduler steps after the start).
    A jump by more than 1.5 between neighbouring steps after the warm-up fits none of them. Where a
    resume lowers the rate to what the settings hold, they speak from there on.

    Cannot tell: whether the configured rate suits the run.
    """
    signal = run.signals.get("learning_rate")
    if signal is None or len(signal.steps) < FEWEST:
        raise NoData("no logged learning rate")
    rate, steps = signal.values, signal.steps
    start = _own_settings_from(run, rate, steps)
    rate, steps = rate[start:], steps[start:]
    late = _late_start(run, rate, steps)
    idle = max(0, late - int(steps[0]) + 1)  # a log may begin with the schedule, at any step
    expected = expected_rate(run, np.maximum(steps - late, 1).astype(float))
    warm = late + _warmup(run)
    if expected is None:
        warm = max(warm, _ramp(rate[rate > 0], steps[rate > 0]))
    jump, at = _largest_jump(rate, expected, steps.astype(float), warm)
    if "restart" in (run.config.text("lr_scheduler_type") or ""):
        jump, at = 1.0, None  # jumps are its nature
    fits_after = None
    if expected is not None and at is not None and jump > JUMP:
        before, fits_after = _sides(rate, expected, steps, warm, at)
        if before is not None and fits_after:
            expected = expected * before  # the schedule that the run had until the jump
    off = _off(rate, expected, jump, at)
    first = int(np.argmax(off)) if off.any() else None
    factor = 1.0
    if expected is not None:
        use = (expected > 0.05 * expected.max()) & (rate > 0) & (steps > warm + 1)
        if use.any():
            factor = float(np.exp(np.abs(np.log(rate[use] / expected[use])).max()))
    place = first if first is not None else at
    at_resume = place is not None and any(abs(r - int(steps[place])) <= 1 for r in resumes(run))
    metrics = Schedule(
        n_steps=len(steps),
        expected_known=expected is not None,
        largest_factor=round(factor, 4),
        jump_factor=round(jump, 4),
        jumps_up=None if at is None else bool(rate[at] > rate[at - 1]),
        rate_before=None if not place else float(rate[place - 1]),
        rate_after=None if place is None else float(rate[place]),
        configured=run.config.number("learning_rate"),
        share_off=round(float(off.mean()), 6),
        late_start_steps=idle,
        settings_fit_after=fits_after,
        at_resume=at_resume,
        settings_from_step=int(steps[0]) if start else None,
        last_good_step=int(steps[first - 1]) if first else None,
        first_bad_step=None if first is None else int(steps[first]),
        from_start=first == 0,
    )
    shown = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 120)).astype(int))
    table = Table(
        title="per step: learning rate",
        columns=("step", "logged", "schedule"),
        rows=tuple(
            (int(steps[i]), float(rate[i]), None if expected is None else float(expected[i]))
            for i in shown
        ),
        cut_rows=len(steps) - len(shown),
    )
    if first is None:
        text = f"learning rate follows its schedule over {len(steps)} steps"
        if expected is None:
            text = f"learning rate moves without a jump over {len(steps)} steps; schedule unknown"
        if idle:
            text += f"; it is 0 for {idle} steps before that begins"
        if start:
            text += f" from step {int(steps[0])} on, where a resume brought other settings"
    else:
        text = (
            f"learning rate leaves its schedule at step {int(steps[first])}: "
            f"{number(float(rate[max(first - 1, 0)]), digits=3)} -> "
            f"{number(float(rate[first]), digits=3)}"
        )
    return Measured(
        metrics,
        text,
        tables=(table,),
        window=(int(steps[0]), int(steps[-1])),
        signal="learning rate against its schedule",
    )


def expected_rate(run: Run, steps: FloatArray) -> FloatArray | None:
    """Configured rate at each step, or None when the config doesn't name a known schedule."""
    peak = run.config.number("learning_rate")
    kind = run.config.text("lr_scheduler_type")
    total = run.config.number("max_steps")
    if peak is None or kind is None:
        return None
    warm = _warmup(run)
    done = steps - 1.0
    rising = np.minimum(1.0, done / warm) if warm > 0 else np.ones(len(done))
    if kind == "constant":
        return np.full(len(done), peak)
    if kind == "constant_with_warmup":
        return peak * rising
    if total is None or total <= warm:
        return None
    left = np.clip((total - done) / (total - warm), 0.0, 1.0)
    if kind == "linear":
        return peak * np.where(done < warm, rising, left)
    if kind == "cosine":
        falling = 0.5 * (1.0 + np.cos(math.pi * (1.0 - left)))
        return peak * np.where(done < warm, rising, falling)
    return None


def _warmup(run: Run) -> float:
    steps = run.config.number("warmup_steps") or 0.0
    if 0 < steps < 1:  # transformers 5 reads a fraction as a share of all steps
        steps *= run.config.number("max_steps") or 0.0
    ratio = run.config.number("warmup_ratio") or 0.0
    if not steps and ratio:
        steps = math.ceil(ratio * (run.config.number("max_steps") or 0.0))
    return steps


def _late_start(run: Run, rate: FloatArray, steps: IntArray) -> int:
    """Steps by which a warm-up begins late: its first step, whose rate is 0, is not step 1.

    0 where the config names a schedule that the rates do not follow after that many steps either.
    """
    if not (rate > 0).any() or rate[0] > 0:
        return 0
    late = max(0, int(steps[np.argmax(rate > 0) - 1]) - 1)  # steps between may not be logged
    expected = expected_rate(run, np.maximum(steps - late, 1).astype(float))
    if expected is None:
        return late
    return late if _follows(rate, expected).mean() > 0.9 else 0


def _follows(rate: FloatArray, expected: FloatArray) -> BoolArray:
    """(S,) steps within 5 % of the schedule."""
    near: BoolArray = np.abs(rate - expected) <= 0.05 * np.maximum(expected, 0.02 * expected.max())
    return near


def _own_settings_from(run: Run, rate: FloatArray, steps: IntArray) -> int:
    """Index from which the settings on file speak; 0 for all steps.

    It is that of a resume after which the rate follows their schedule, and before which it doesn't.
    A rate that was raised stays in sight, whoever raised it. The rate logged at the step of a
    resume may still be that of the checkpoint.
    """
    expected = expected_rate(run, steps.astype(float))
    stated = run.config.changed
    if expected is None or (stated is not None and stated.isdisjoint(OF_THE_RATE)):
        return 0
    follows = _follows(rate, expected)
    for resume in resumes(run):
        at = int(np.searchsorted(steps, resume + 1))
        known = 0 < at <= len(steps) - FEWEST and follows[at:].all() and follows[:at].mean() < 0.5
        last = max(int(np.searchsorted(steps, resume)) - 1, 0)
        if known and rate[at] <= JUMP * min(rate[at - 1], rate[last]):
            return at
    return 0


def _ramp(rate: FloatArray, steps: IntArray) -> float:
    """Length of a warm-up read off the rates: equal increments from the first step on."""
    rise = np.diff(rate)
    if not len(rise) or rise[0] <= 0:
        return 0.0
    equal = np.abs(rise - rise[0]) <= 0.05 * rise[0]
    n = len(rise) if equal.all() else int(np.argmin(equal))
    return float(steps[n])


def _largest_jump(
    rate: FloatArray, expected: FloatArray | None, steps: FloatArray, warm: float
) -> tuple[float, int | None]:
    """Largest factor between neighbours after the warm-up, beyond the schedule's own."""
    usable = (rate[1:] > 0) & (rate[:-1] > 0) & (steps[:-1] > warm + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.abs(np.log(rate[1:] / rate[:-1]))
        if expected is not None:  # both the rate and its distance to the schedule must jump
            planned = np.log(expected[1:] / expected[:-1])
            beyond = np.log(rate[1:] / rate[:-1]) - np.where(np.isfinite(planned), planned, 0.0)
            moved = np.minimum(moved, np.abs(beyond))
    size = np.where(usable, moved, 0.0)
    # The last steps of a decay to 0 change by large factors of almost nothing.
    size[np.maximum(rate[:-1], rate[1:]) < 0.1 * rate.max()] = 0.0
    high = rate > 0.1 * rate.max()
    dropped = (rate[1:] == 0) & high[:-1]
    ended = (rate[:-1] == 0) & np.logical_or.accumulate(rate > 0)[:-1]  # a decay, and no warm-up
    rose = ended & high[1:] & (steps[:-1] > warm + 1)
    size[dropped | rose] = math.log(1e6)
    at = int(np.argmax(size)) if len(size) else 0
    return (float(np.exp(size[at])), at + 1) if len(size) and size[at] > 0 else (1.0, None)


def _sides(
    rate: FloatArray, expected: FloatArray, steps: IntArray, warm: float, at: int
) -> tuple[float | None, bool]:
    """Rate over schedule before the jump, where steady; whether only the side after follows it."""
    use = (expected > 0) & (rate > 0) & (steps > warm + 1)
    ratio = np.divide(rate, expected, out=np.ones(len(rate)), where=expected > 0)
    before, after = ratio[:at][use[:at]], ratio[at:][use[at:]]
    if not len(before) or not len(after):
        return None, False
    level = float(np.median(before))
    steady = bool((np.abs(before / level - 1) <= 0.05).mean() > 0.9)
    follows = bool((np.abs(after - 1) <= 0.05).mean() > 0.9) and abs(level - 1) > 0.05
    return (level if steady else None), follows


def _off(rate: FloatArray, expected: FloatArray | None, jump: float, at: int | None) -> BoolArray:
    """Steps off the schedule; after a jump, the side that doesn't follow it, else the later one."""
    later = np.zeros(len(rate), bool)
    if jump > JUMP and at is not None:
        later[at:] = True
        return later
    if expected is None:
        return later
    return ~_follows(rate, expected)
