"""What a run left behind: which evidence is there, so that only what is missing is asked for."""

from __future__ import annotations

import numpy as np

from firstbad.tools.completeness import rows_complete
from firstbad.tools.evidence import Metrics
from firstbad.tools.judge_breaks import broke
from firstbad.tools.probability.ratios import ENGINE
from firstbad.tools.readers.aliases import UNKNOWN
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import used_advantage
from firstbad.tools.run import Run
from firstbad.tools.updates import mixes_batches, updates_per_batch


class Stock(Metrics):
    """Counts and yes/no: what there is, whatever it says."""

    logged_steps: int
    run_steps: int
    """From the first to the last step with metrics or rollouts, those without any among them."""
    loss_lacking: int
    """Of these: steps without a loss of their own rollouts. Likewise the next ones."""
    rollouts_lacking: int
    advantages_lacking: int
    dumps_lacking: int
    norms_lacking: int
    rates_lacking: int
    entropies_lacking: int
    ratios_lacking: int
    """Without the largest or the least ratio."""
    loss_steps: int
    """Steps with a loss of their own rollouts: 0 where it is averaged over several batches."""
    rollout_steps: int
    beyond_metrics: int
    """Steps of rollouts after the last one with metrics."""
    empty_texts: float
    """Share of the completions without text, in the last step with rollouts, while the log gives
    them more than two tokens; 0 where it does not say."""
    advantage_steps: int
    """Steps of rollouts with advantages, recorded or defined by the settings."""
    rows_missing: bool
    """Steps of rollouts hold only part of the rows that were trained on."""
    gold: bool
    """Right answers stand beside the rollouts, or were found for them."""
    judged: bool
    """They are there, or a judge of the user's was asked and did not break."""
    captures: int
    settings: bool
    """Settings of the trainer are there."""
    updates_known: bool
    """They say how often a rollout batch is trained on."""
    loss_settings: bool
    """They say what the loss is made of."""
    engine_settled: bool
    """No other engine samples, or its difference to the trainer is logged."""


@tool
def take_stock(run: Run) -> Measured[Stock]:
    """Which kinds of evidence the run's files hold.

    Advantages and right answers are looked for in the first step with rollouts; token dumps are
    counted, not opened.

    Cannot tell: whether what is there suffices, or is right.
    """
    first = next(iter(run.rollouts.batches()), None)
    loss = run.signals.get("loss") or run.signals.get("policy_loss")
    averaged = mixes_batches(run)
    advantages = first is not None and used_advantage(run, first) is not None
    trainer = run.config.of_trainer
    gold = first is not None and any(first.gold or ())
    loss_steps = 0 if loss is None or averaged else len(loss.steps)
    rollout_steps = len(run.rollouts.steps)
    n_steps = _run_steps(run)

    def lacking(*names: str) -> int:
        found = [run.signals.get(name) for name in names]
        return n_steps - min(0 if signal is None else len(signal.steps) for signal in found)

    metrics = Stock(
        logged_steps=len(run.signals.steps),
        run_steps=n_steps,
        loss_lacking=n_steps - loss_steps,
        rollouts_lacking=n_steps - rollout_steps,
        advantages_lacking=n_steps - (rollout_steps if advantages else 0),
        dumps_lacking=n_steps - len(run.captures.steps),
        norms_lacking=lacking("grad_norm_preclip"),
        rates_lacking=lacking("learning_rate"),
        entropies_lacking=lacking("entropy"),
        ratios_lacking=lacking("ratio_max", "ratio_min"),
        loss_steps=loss_steps,
        rollout_steps=rollout_steps,
        beyond_metrics=_beyond(run),
        empty_texts=_empty(run),
        advantage_steps=len(run.rollouts.steps) if advantages else 0,
        rows_missing=rows_complete(run) is False,
        gold=gold,
        judged=gold or (run.judge is not None and not broke(run.judge)),
        captures=len(run.captures.steps),
        settings=trainer,
        updates_known=updates_per_batch(run) is not None,
        loss_settings=trainer
        and (run.config.number("beta") is not None or run.signals.get("kl_ref") is None),
        engine_settled=not _engine_samples(run) or any(run.signals.get(n) for n in ENGINE),
    )
    told = (
        f"metrics of {metrics.logged_steps} steps",
        f"rollouts of {metrics.rollout_steps}",
        f"token dumps of {metrics.captures}",
        "settings of the trainer" if trainer else "no settings of the trainer",
    )
    dumps = [s for step in run.captures.steps[:1].tolist() for s in run.captures.sources(step)]
    return Measured(metrics, ", ".join(told), sources=(*run.rollouts.answers(), *dumps))


def _run_steps(run: Run) -> int:
    steps = np.concatenate([run.signals.steps, run.rollouts.steps])
    return int(steps.max() - max(1, steps.min())) + 1 if len(steps) else 0


def _engine_samples(run: Run) -> bool:
    """As declared; else by the framework: most sample with an engine of their own."""
    stated = run.config.flag("use_vllm")
    return run.framework not in (UNKNOWN, "trl", "ms-swift") if stated is None else stated


def _beyond(run: Run) -> int:
    logged = run.signals.steps
    return int((run.rollouts.steps > logged[-1]).sum()) if len(logged) else 0


def _empty(run: Run) -> float:
    length = run.signals.get("completion_length_mean")
    last = next(iter(run.rollouts.batches(run.rollouts.steps[-1:])), None)
    tokens = length.at(last.step) if last is not None and length is not None else None
    if last is None or tokens is None or tokens <= 2:
        return 0.0
    return round(sum(not text.strip() for text in last.completions) / len(last), 6)
