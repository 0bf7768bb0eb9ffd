"""What to do now: stop or not, the cure, where to resume, what to verify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from firstbad.agent.memo.open_questions import requests_to_show
from firstbad.agent.memo.text import one_line
from firstbad.agent.memo.words import Row, step
from firstbad.playbooks.checkpoints import weights_alone
from firstbad.playbooks.model import Cause
from firstbad.playbooks.results import Finding, LeastBad, Onset, Verdict
from firstbad.tools.evidence import Evidence
from firstbad.tools.numbers import percent

FELL_Z = -2.0
"""Standard errors from which the reward around a step counts as lower, as for the complaint."""


def actions(
    verdict: Verdict,
    leading: Finding | None,
    cause: Cause | None,
    evidence: Mapping[str, Evidence],
) -> Iterable[Row]:
    """The table `do now`."""
    if verdict.outcome == "undetermined":
        yield Row("stop or go on", _stop_or_go_on(verdict, evidence))
        yield from (Row("suspects", text) for text in verdict.symptoms)
    if leading is None:
        return
    spoiled = verdict.first_spoiled
    if spoiled is None:
        yield Row("stop", "not for this fault's sake: it spoils no weights")
    else:
        onset = verdict.first_bad if spoiled is leading else spoiled.first_bad
        yield Row("stop", _stop(verdict, onset, evidence) + _other(leading, spoiled))
    label = {"fixes": "fix", "dilutes": "only dilutes", "experiment": "experiment"}
    if remedy := leading.remedy or (cause.remedy if cause else ""):
        yield Row(label[leading.remedy_kind], remedy)
    if spoiled is None:
        yield Row("resume", _go_on(verdict))
    else:
        # "unclear": whether to go back at all is said under `roll back`, and decides first
        open_choice = spoiled.weights == "unclear" and leading.rollback and not onset.from_start
        yield Row("resume", ("if you go back, " if open_choice else "") + _resume(verdict, onset))
    started_over = spoiled is not None and onset.from_start
    if leading.rollback and spoiled in (leading, None) and not started_over:
        yield Row("roll back", leading.rollback)
    if verify := leading.verify or (cause.verify if cause else ""):
        yield Row("verify", verify)
    if dilutes := leading.dilutes or (cause.dilutes if cause else ""):
        yield Row("only dilutes", dilutes)
    if leading.log_next:
        yield Row("log next time", leading.log_next)
    for asked in requests_to_show(verdict.requests):
        yield Row(f"{asked.layers[0]} needs", f"{asked.need}; decides: {asked.decides}")


def _other(leading: Finding, spoiled: Finding) -> str:
    """That another finding is what a checkpoint must lie before; empty where the leading one is."""
    if spoiled is leading:
        return ""
    why = "began first"
    if leading.weights == "sound":
        why = "spoils the weights" if spoiled.weights == "spoiled" else "may spoil the weights"
    return f"; `{spoiled.cause}`, also found, {why}"


def _go_on(verdict: Verdict) -> str:
    """From where to go on where no finding spoils the weights."""
    if verdict.resume_from is None:
        return "from the newest checkpoint: this fault leaves the weights sound"
    newest = one_line(verdict.resume_from)
    return f"from `{newest}`, the newest checkpoint: this fault leaves the weights sound"


def _stop_or_go_on(verdict: Verdict, evidence: Mapping[str, Evidence]) -> str:
    """What is known for that decision where no cause is: what moved, and what the outcome did."""
    window = next((e for e in evidence.values() if e.tool == "find_first_bad" and e.metrics), None)
    seen = max((e.window.last for e in evidence.values() if e.window), default=None)
    until = f" by step {step(seen)}, the last one seen" if seen is not None else ""
    if window is None or window.metrics is None:
        return "not decided here: no signal could be read"
    first = verdict.first_bad.first_bad
    since = "" if first is None else f" after the first change at step {step(first)}"
    if window.metrics.get("outcome_fell"):
        left = window.metrics.get("outcome_end_over_best")
        kept = "" if left is None else f", {percent(left)} of what it had gained is left{until}"
        return (
            f"not decided here. The outcome fell{since}{kept}: nothing measured speaks for going "
            "on; keep the checkpoints from before it"
        )
    around = next((e for e in evidence.values() if e.tool == "compare_around" and e.metrics), None)
    fell = [(around.metrics or {}).get(z) for z in ("outcome_z", "reward_z")] if around else []
    if any(isinstance(z, float) and z < FELL_Z for z in fell):
        return (
            "not decided here. The reward is lower after the step that the complaint is held "
            "against: nothing measured speaks for going on; keep the checkpoints from before it"
        )
    if window.metrics.get("is_onset"):
        return (
            f"not decided here. A signal moved at step {step(first)}, the outcome did not fall"
            f"{until}: nothing measured asks for a stop, and nothing clears the run"
            if first is not None
            else f"not decided here. A signal moved, the outcome did not fall{until}"
        )
    return (
        f"not decided here. No signal left its band{until}: nothing measured asks for a stop; a "
        "fault from the first step would look the same"
    )


def _since(onset: Onset) -> str:
    """From where on a checkpoint may carry the fault; empty where that is from the first step."""
    if onset.first_bad is None or onset.from_start:
        return ""
    if onset.sampled and onset.bracket_start is None:
        return ""
    if onset.is_bracket and onset.bracket_start is not None:
        return f" after step {step(onset.bracket_start)}"
    return f" from step {step(onset.first_bad)} on"


def _stop(verdict: Verdict, onset: Onset, evidence: Mapping[str, Evidence]) -> str:
    seen = max((e.window.last for e in evidence.values() if e.window), default=None)
    until = f"; last step seen {step(seen)}" if seen is not None else ""
    if _has_ended(evidence):
        at = f" at step {step(seen)}" if seen is not None else ""
        if verdict.least_bad is not None:  # which of them is left to choose from is said below
            return (
                f"training has ended{at}: every checkpoint there is was saved after the fault began"
            )
        return f"training has ended{at}: use no checkpoint{_since(onset)}"
    if onset.from_start:
        return f"the run, if it still trains: every step carries the fault{until}"
    if onset.first_bad is None:
        return f"the run, if it still trains; the fault could not be dated{until}"
    since = step(onset.first_bad)
    if onset.last_bad is not None:
        return (
            f"the run, if it still trains: steps {since} to {step(onset.last_bad)} carried the "
            f"fault, and all that was saved since holds them{until}"
        )
    if onset.is_bracket and onset.bracket_start is not None:
        return (
            f"the run, if it still trains: every step from {since} on carries the fault, "
            f"those after {step(onset.bracket_start)} may{until}"
        )
    return f"the run, if it still trains: every step from {since} on carries the fault{until}"


def _has_ended(evidence: Mapping[str, Evidence]) -> bool:
    """Whether the record says that training ended, in order or by an exception."""
    said = [e.metrics for e in evidence.values() if e.metrics]
    return any(m.get("ended") is True or m.get("by_error") is True for m in said)


def _resume(verdict: Verdict, onset: Onset) -> str:
    if onset.from_start:
        return "start again: there is no good step to go back to"
    if onset.first_bad is None:
        return "not decided, since the fault is not dated: keep every checkpoint"
    at = " before the first bad step"
    if onset.is_bracket and onset.bracket_start is not None:
        at = f" up to step {step(onset.bracket_start)}"
    elif onset.first_bad is not None:
        at = f" before step {step(onset.first_bad)}"
    over = "; ".join(map(one_line, verdict.passed_over))
    none = f"no whole checkpoint{at} was found ({over})" if over else f"no checkpoint{at} was found"
    if verdict.resume_from is None and (weights := weights_alone(verdict.passed_over)) is not None:
        return (
            f"{none}; take the weights of `{one_line(weights)}` alone, whose optimizer then begins "
            "anew, or start again"
        )
    if (least := verdict.least_bad) is not None:
        return (
            f"start again: {none}. If that costs too much, "
            f"`{one_line(least.checkpoint)}` holds the fewest bad updates, {_updates(least, onset)}"
        )
    if verdict.resume_from is None:
        return f"{none}; start again, or from one kept elsewhere"
    last = (
        f"from `{one_line(verdict.resume_from)}`, the last{' whole' if over else ''} checkpoint{at}"
    )
    return f"{last}; passed over: {over}" if over else last


def _updates(least: LeastBad, onset: Onset) -> str:
    """How many bad updates a checkpoint holds, and which where the fault ended before it."""
    most = least.updates_most
    told = step(least.updates) if most is None else f"{least.updates} to {most}"
    if onset.last_bad is None or onset.first_bad is None or onset.is_bracket:
        return told
    return f"{told} (of steps {step(onset.first_bad)} to {step(onset.last_bad)})"
