"""Is the reference the policy that training began with?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.records.prompts import other_prompts_at
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run, Signal
from firstbad.tools.segments import resumes
from firstbad.tools.stats import robust_sd, row_medians

OFF = 0.05
"""KL at step 1, in nats per token, that is dated."""
BACK = 0.02
"""KL of two steps in a row over the level before them, below which it is dated as back at 0."""
STAYS, AFTER = 0.5, 5
"""KL over that level below which it stays, for so many steps: it has to grow anew."""
LEVEL = 1e-3
"""KL, in nats per token, above which a level counts as away from the reference."""
LEAP = 0.05
"""KL at a resume beyond the level before it, in nats per token, that is dated."""
SPREADS, STILL = 5, 3
"""... in spreads of the steps before; and spreads that reward and entropy may move by."""
BEFORE, OPENING, NEXT = 10, 5, 3
"""Steps that a level is taken over: before a step, at the start of the run, from the step on."""


class Reference(Dated):
    """KL where it must be 0, and whether it comes back there."""

    kl_first: float | None
    """KL to the reference at step 1, nats per token; None where it is not logged."""
    kl_before: float | None
    """Level of KL before it is lowest against its own level; None without ten steps of a level
    above 0.001, where the settings move the reference (`sync_ref_model`), or where no settings are
    there to say so."""
    kl_back: float | None
    """The higher KL of the two steps there, or of five where it does not stay, over that level."""
    policy_back: bool
    """Reward or entropy go back there to where the run began: it is the policy that came back.
    False also where neither had moved away from its beginning."""
    other_prompts: bool | None
    """The prompts from there on are others than those before; None: not recorded."""
    at_resume: bool
    """A resume lies there."""
    kl_leap: float | None
    """KL in the first step of a resume less where it was going, nats per token: the largest such
    leap that lasts while reward and entropy stay; 0 without one, None without resume or level."""
    kl_leapt_from: float | None
    """Where it was going."""
    kl_at_once: float | None
    """The largest lasting leap there, whatever reward and entropy do."""


@tool
def check_reference(run: Run) -> Measured[Reference]:
    """KL to the reference at step 1, before any update, and whether it leaps or comes back to 0.

    At step 1 it is 0 where the reference is the first policy. Later it is 0 again only where policy
    and reference become one: the reference was loaded from the policy, or the policy from where it
    began; then reward and entropy are back at their first level as well. In the first step of a
    resume the policy is that of the step before: KL that leaps there is another reference's.

    KL of prompts that the policy has not met is small as well, so prompts are compared there.

    Cannot tell: whether other weights or another way of computing them make a first KL.
    """
    kl = run.signals.get("kl_ref")
    if kl is None:
        raise NoData("no logged KL to the reference")
    first = kl.at(1)
    moved = run.config.flag("sync_ref_model") or not run.config.of_trainer
    at = None if moved else _lowest(kl)
    leap = None if moved else _leap(run, kl)
    if first is None and at is None and leap is None:
        raise NoData("no logged KL to the reference at step 1, nor a level of it later on")
    off = first is not None and first > OFF
    level = None if at is None else float(np.median(kl.values[at - BEFORE : at]))
    ratio = None if at is None or not level else _fallen_to(kl, at, level)
    back = None if at is None or ratio is None or ratio >= BACK else int(kl.steps[at])
    step, last = back, None if back is None or at is None else int(kl.steps[at - 1])
    if back is None and leap is not None and leap.nats > 0:
        step, last = int(kl.steps[leap.at]), int(kl.steps[leap.at - 1])
    metrics = Reference(
        kl_first=first,
        kl_before=_r(level),
        kl_back=_r(ratio),
        policy_back=back is not None and _returned(run, back),
        other_prompts=None if back is None else other_prompts_at(run, back),
        at_resume=back is not None and any(abs(back - s) <= 1 for s in resumes(run)),
        kl_leap=None if leap is None else _r(leap.nats),
        kl_leapt_from=None if leap is None or not leap.at_once else _r(leap.level),
        kl_at_once=None if leap is None else _r(leap.at_once),
        last_good_step=None if off else last,
        first_bad_step=1 if off else step,
        from_start=off,
    )
    told = []
    if first is not None:
        told.append(f"KL to the reference is {first:.3g} nats per token before any update")
    if leap is not None and leap.nats > 0:
        told.append(
            f"KL leaps from {leap.level:.3g} by {leap.nats:.3g} nats per token at step "
            f"{int(kl.steps[leap.at])}, the first of a resume"
        )
    if back is not None and at is not None:
        told.append(
            f"KL falls back from {level:.3g} to {kl.values[at]:.3g} nats per token at step {back}"
        )
    elif ratio is not None:
        told.append(f"KL never falls below {ratio:.2g} of its level")
    return Measured(
        metrics,
        "; ".join(told),
        sources=run.sources,
        window=(int(kl.steps[0]), int(kl.steps[-1])),
        signal="KL before any update" if off or step is None else "KL to the reference",
    )


def _lowest(kl: Signal) -> int | None:
    """Index at which KL falls farthest against the level before it; None without such a level."""
    if len(kl.values) < BEFORE + 2:
        return None
    levels = row_medians(np.lib.stride_tricks.sliding_window_view(kl.values, BEFORE)).tolist()
    away = {
        at: level
        for at, level in zip(range(BEFORE, len(kl.values) - 1), levels, strict=False)
        if level > LEVEL
    }
    return min(away, key=lambda at: _fallen_to(kl, at, away[at])) if away else None


@dataclass(frozen=True)
class _Leap:
    at: int
    """Index of the first step of a resume."""
    level: float
    nats: float
    """0 where it does not last, or the policy does not stay."""
    at_once: float
    """0 where it does not last."""


def _leap(run: Run, kl: Signal) -> _Leap | None:
    """The largest leap of KL at a resume; of 0 nats where none lasts while the policy stays."""
    found = []
    for resume in resumes(run):
        at = int(np.searchsorted(kl.steps, resume))
        before, after = kl.values[max(0, at - BEFORE) : at], kl.values[at : at + AFTER]
        if len(before) < BEFORE or len(after) < AFTER or kl.steps[at] > resume + 1:
            continue
        # KL drifts: what counts is the distance from where it was going.
        line = np.poly1d(np.polyfit(np.arange(BEFORE), before, 1))
        level = float(max(line(BEFORE), 0.0))
        nats = float(min(after[0], np.median(after))) - level
        wide = SPREADS * float(np.std(before - line(np.arange(BEFORE)), ddof=2))
        # KL of other prompts has another level of its own.
        leaps = nats > max(LEAP, wide) and not other_prompts_at(run, int(kl.steps[at]))
        at_once = nats if leaps else 0.0
        found.append(_Leap(at, level, at_once * _stays(run, int(kl.steps[at])), at_once))
    return max(found, key=lambda leap: (leap.nats, leap.at_once), default=None)


def _stays(run: Run, step: int) -> bool:
    """Whether reward and entropy, as far as they are logged, stay at a step where they were."""
    seen = []
    for name in ("reward_mean", "entropy"):
        signal = run.signals.get(name)
        if signal is None:
            continue
        before = signal.values[signal.steps < step][-BEFORE:]
        after = signal.values[signal.steps >= step][:NEXT]
        if len(before) == BEFORE and len(after) == NEXT:
            wide = STILL * float(np.std(before)) + 1e-9
            seen.append(abs(float(after.mean() - before.mean())) <= wide)
    return bool(seen) and all(seen)


def _fallen_to(kl: Signal, at: int, level: float) -> float:
    """The higher of two steps over the level, or of the next five where KL is back up by then."""
    next_ = kl.values[at : at + AFTER]
    lasting = float(next_.max())
    return (lasting if lasting > STAYS * level else float(next_[:2].max())) / level


def _returned(run: Run, step: int) -> bool:
    """Whether what had moved since the beginning is at least half way back there at a step."""
    shares = []
    for name in ("reward_mean", "entropy"):
        signal = run.signals.get(name)
        if signal is None:
            continue
        before = signal.values[signal.steps < step][-BEFORE:]
        after = signal.values[signal.steps >= step][:NEXT]
        start = signal.values[:OPENING]
        if len(before) < BEFORE or len(after) < NEXT:
            continue
        moved = float(start.mean() - np.median(before))
        if abs(moved) > 3 * robust_sd(before):
            shares.append(float(after.mean() - np.median(before)) / moved)
    return max(shares, default=0.0) > 0.5


def _r(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
