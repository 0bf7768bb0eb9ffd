"""One optimizer step of this process: what is kept of it whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstbad_recorder.sources import PADDING, SAMPLED
from firstbad_recorder.trl.figures import ledger_of, trail_of
from firstbad_recorder.trl.micro import Micro, Settings, Weighed
from firstbad_recorder.trl.passes import ARRAYS
from firstbad_recorder.trl.rows import SOURCE


@dataclass
class Step:
    """What was seen of the step so far."""

    micros: list[Micro] = field(default_factory=list)
    norms: list[dict[str, object]] = field(default_factory=list)
    trail: list[dict[str, object]] = field(default_factory=list)
    """Of a watched pass, where the gradient was not finite."""
    first_nonfinite: dict[str, object] = field(default_factory=dict)
    scale: float | None = None
    """What its losses are multiplied with against vanishing gradients."""


def kept_of(
    seen: Step,
    parts: Sequence[Weighed],
    settings: Settings,
    generated: Sequence[Mapping[str, object]],
    *,
    rank: int,
    world: int,
) -> dict[str, Any]:
    """Files and facts of the step, as `Recorder.hold` takes them; rows in order of generation."""
    used = [(m.generation.number, i) for m in seen.micros for i in m.rows]
    order = sorted(range(len(used)), key=lambda k: used[k])
    trained = [line for m in seen.micros for line in m.lines]
    names = [str(row["sample"]) for row in generated]
    first = {"first_nonfinite": seen.first_nonfinite} if seen.first_nonfinite else {}
    return {
        "rollouts": [trained[k] for k in order],
        "generated": generated if len(trained) < len(generated) else None,
        "tokens": ordered(tokens_of(parts), order),
        "microbatches": ledger_of(parts, settings, rank, world),
        "numerics": {
            "trail": [*trail_of(parts), *seen.trail],
            "norms": seen.norms,
            **first,
        },
        "in_order": True,
        "filters": "none",
        "first_pass": all(m.update == 0 for m in seen.micros),
        "stages": {
            "generated": names,
            "scored": names,
            "trained": [str(line["sample"]) for line in trained],
        },
    }


def tokens_of(parts: Sequence[Weighed]) -> dict[str, Any]:
    """Flat arrays of tokens.safetensors, rows of all micro-batches behind one another."""
    import torch

    found: dict[str, list[Any]] = {}
    offsets = [0]
    checked = {name for part in parts for name in part.micro.checked}
    for part in parts:
        rows, width = part.passed.ids.shape
        offsets += [offsets[-1] + width * (i + 1) for i in range(rows)]
        for name, values in _arrays(part, checked).items():
            if values is not None:
                found.setdefault(name, []).append(values.reshape(-1).detach())
    whole = {name: torch.cat(values) for name, values in found.items()}
    # an array that some micro-batches lack is left out
    n = offsets[-1]
    return {"offsets": offsets, **{k: v.cpu() for k, v in whole.items() if v.numel() == n}}


def _arrays(part: Weighed, checked: set[str]) -> dict[str, Any]:
    """(R, T) by name, of one micro-batch; None where there is none.

    `checked`: further passes that some micro-batch of the step has; NaN where it is another one.
    """
    import torch

    micro, passed = part.micro, part.passed
    width = passed.ids.shape[1]
    blank = torch.full_like(passed.logp, float("nan"), dtype=torch.float32)
    arrays = {
        "logp_new": passed.logp,
        "logp_old": micro.old,  # what ratios are taken against: here it may be the pass itself
        "logp_ref": micro.inputs.get("ref_per_token_logps"),
        "logp_engine": micro.inputs.get("sampling_per_token_logps"),
        "entropy": passed.entropy,
        **{ARRAYS[name]: micro.checked.get(name, blank) for name in checked},
    }
    source, nan = sources_in(micro), float("nan")
    for name, values in arrays.items():
        if values is not None:
            own = placed(micro.wide(values.float(), nan), width, nan)
            arrays[name] = own.masked_fill(source < SAMPLED, nan)
    advantage = micro.advantage
    one = advantage.shape[1] == 1
    return {
        "token_id": passed.ids,
        "source": source,
        "attention_mask": passed.attended,
        "loss_mask": placed(part.mask.to(torch.uint8), width, 0),
        **arrays,
        "advantage": advantage.expand(-1, width) if one else placed(advantage, width, 0.0),
    }


def ordered(tokens: dict[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """The arrays with their rows in another order."""
    import torch

    ends = tokens.pop("offsets")
    parts = [torch.arange(ends[k], ends[k + 1]) for k in order]
    at = torch.cat(parts)
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return {"offsets": offsets, **{name: values[at] for name, values in tokens.items()}}


def placed(values: Any, width: int, fill: float) -> Any:
    """(R, width) an array over the last columns, filled up on the left."""
    have = values.shape[1]
    if have == width:
        return values
    left = values.new_full((values.shape[0], width - have), fill)
    import torch

    return torch.cat([left, values], dim=1)


def sources_in(micro: Micro) -> Any:
    """(R, T) where each token of the pass comes from, as `rows.sources` has it."""
    assert micro.passed is not None
    known, width = micro.inputs[SOURCE], micro.passed.ids.shape[1]
    return known[:, -width:] if known.shape[1] >= width else placed(known, width, PADDING)
