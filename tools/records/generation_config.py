"""What the model's generation config would supply to the sampler behind the trainer's back."""

from __future__ import annotations

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Table
from firstbad.tools.probability.sampling_settings import OFF
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

PREFIX = "generation."
WATCHED = {**OFF, "temperature": (1.0, 1.0)}
"""Settings of the sampler, with the values between which they do nothing."""


class GenerationConfig(Metrics):
    """Settings of the sampler that the generation config states and that are not off."""

    n_stated: int
    n_supplied: int
    """Of them: the trainer states nothing, or a value that does nothing."""
    n_differ: int
    """Of them: the trainer states another value that does something."""


@tool
def check_generation_config(run: Run) -> Measured[GenerationConfig]:
    """Top-k, top-p, penalties and temperature of the generation config against the trainer's.

    Some stacks fill what the caller leaves at its default from the model's generation config: then
    the sampler has a penalty or a top-k that nobody asked for and the trainer does not score.

    Cannot tell: which of the two the stack followed; the surprise of sampled tokens does.
    """
    values = run.config.values
    if not any(name.startswith(PREFIX) for name in values):
        raise NoData("no generation_config.json of the model")
    stated = {
        name: own
        for name in WATCHED
        if (own := run.config.number(PREFIX + name)) is not None and not _is_off(name, own)
    }
    rows = []
    supplied = differ = 0
    for name, own in stated.items():
        asked = run.config.number(name)
        if asked is None or _is_off(name, asked):
            supplied += 1
            kind = "supplied"
        elif abs(asked - own) > 1e-9:
            differ += 1
            kind = "another value"
        else:
            continue
        rows.append((name, own, asked, kind))
    metrics = GenerationConfig(n_stated=len(stated), n_supplied=supplied, n_differ=differ)
    told = ", ".join(f"`{name}` {own:g}" for name, own, _, kind in rows if kind == "supplied")
    return Measured(
        metrics,
        f"the generation config states {len(stated)} settings of the sampler that are not off; "
        f"{supplied} of them the trainer leaves off, {differ} it states otherwise",
        tables=(
            Table(
                title="generation config against trainer",
                columns=("setting", "generation config", "trainer", "what"),
                rows=tuple(rows),
            ),
        )
        if rows
        else (),
        quote=f"The model's generation config states {told}." if told else "",
    )


def _is_off(name: str, value: float) -> bool:
    low, high = WATCHED[name]
    return low <= value <= high
