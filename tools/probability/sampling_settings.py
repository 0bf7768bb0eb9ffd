"""Settings that make the sampler another distribution than the one that the trainer scores."""

from __future__ import annotations

from collections.abc import Mapping

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import LARGEST_SETTING, Run
from firstbad.tools.segments import stated_from

OFF: dict[str, tuple[float, float]] = {
    "top_p": (1.0, float("inf")),
    "top_k": (float("-inf"), 0.0),
    "min_p": (float("-inf"), 0.0),
    "repetition_penalty": (1.0, 1.0),
    "no_repeat_ngram_size": (float("-inf"), 0.0),
    "presence_penalty": (0.0, 0.0),
    "frequency_penalty": (0.0, 0.0),
}
"""Settings of the sampler, with the values between which they do nothing."""
OVERRIDES = "generation_kwargs"
"""TRL: a setting that reaches the sampler alone, and wins there over the one of its name."""


class SamplingSettings(Dated):
    """What is declared; the onset is that of the settings, which speak for the last launch."""

    filtered: bool
    """Top-p, top-k, min-p, a penalty or a second temperature is declared and not off."""
    penalty_not_scored: float | None
    """abs(repetition penalty - 1) where the trainer is known not to follow it (TRL without an
    engine of its own); None where that is unknown."""


@tool
def check_sampling_settings(run: Run) -> Measured[SamplingSettings]:
    """Whether settings cut or bend the distribution that is sampled from, beside the temperature.

    A temperature is mirrored by the trainer, which divides its logits by it. Top-p, top-k, min-p
    and penalties are not: sampled tokens then come from another policy than the one that is scored.
    What is not stated counts as off. Source: TRL 1.16, `_get_per_token_logps_and_entropies`.

    Cannot tell: how much it matters. Top-k 50 may cut nothing; that takes captured tokens.
    """
    values = run.config.values
    if not values:
        raise NoData("no configuration file (args.json, config.json, config.yaml)")
    given = values.get(OVERRIDES)
    given = given if isinstance(given, Mapping) else {}
    stated = {name: _number(given.get(name, values.get(name))) for name in OFF}
    bent = {
        name: value
        for name, value in stated.items()
        if value is not None and not OFF[name][0] <= value <= OFF[name][1]
    }
    own, mirrored = _number(given.get("temperature")), _number(values.get("temperature"))
    if own is not None and own != (1.0 if mirrored is None else mirrored):
        bent["temperature"] = own
    of_trl = run.framework == "trl" and run.config.flag("use_vllm") is False
    penalty = stated["repetition_penalty"]
    from_step = stated_from(run, *OFF, OVERRIDES)
    steps = run.signals.steps
    first = from_step if from_step is not None else int(steps[0]) if len(steps) else None
    metrics = SamplingSettings(
        filtered=bool(bent),
        penalty_not_scored=round(abs((penalty or 1.0) - 1.0), 6) if of_trl else None,
        first_bad_step=first if bent else None,
        from_start=bool(bent) and from_step is None,
    )
    told = ", ".join(f"{name} {value:g}" for name, value in bent.items())
    rows = tuple((name, value) for name, value in stated.items() if value is not None)
    table = Table(title="settings of the sampler", columns=("setting", "value"), rows=rows)
    return Measured(
        metrics,
        f"the sampler is given {told}, which log-probs do not follow"
        if bent
        else "no setting of the sampler beside the temperature",
        tables=(table,) if rows else (),
        sources=run.config.sources,
        signal="settings of the sampler",
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < LARGEST_SETTING else None
