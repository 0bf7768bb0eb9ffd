"""Numbers of one optimizer step of this process: its ledger, its trail and its scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firstbad_recorder.trl.micro import DUE, Settings, Weighed, cut_by_advantage, denominator


def ledger_of(
    parts: Sequence[Weighed],
    settings: Settings,
    rank: int,
    world_size: int,
) -> list[dict[str, object]]:
    """Lines of microbatches.jsonl: denominators and losses as they were measured."""
    measured = [_divided(part, settings) for part in parts]
    known = [divided for divided, _, _ in measured if divided is not None]
    found: list[dict[str, object]] = []
    for part, (divided, kind, silent) in zip(parts, measured):
        micro = part.micro
        row: dict[str, object] = {
            "update": micro.update,
            "epoch": micro.update,
            "rank": rank,
            "microbatch": micro.number,
            "samples": [str(line["sample"]) for line in micro.lines],
            "n_samples": len(micro.rows),
            "n_tokens": int(part.mask.sum()),
            # Nothing flows back although its tokens have an advantage: it counts 0 times, whatever
            # it is divided by.
            "scale": 0.0 if silent else 1.0,
            "denominator": known[0] if silent and known else divided,
            "denominator_counts": kind or None,
            "loss": _product(micro.loss, micro.factor),
            "grad_norm": micro.grad_norm(),
        }
        if world_size > 1:  # as data-parallel training joins its ranks
            row["reduction"] = "mean"
        found.append({**row, **_ratios_of(part, settings)})
    return found


def _ratios_of(part: Weighed, settings: Settings) -> dict[str, object]:
    """Quantiles of the ratios of a micro-batch, and shares beyond the bounds where it has some."""
    import torch

    ratio = part.ratio[part.once]
    if not ratio.numel():
        return {}
    quantiles = torch.tensor([0.5, 0.95, 0.99], device=ratio.device, dtype=ratio.dtype)
    p50, p95, p99 = torch.quantile(ratio[: 2**24], quantiles).tolist()
    found: dict[str, object] = {"ratio_p50": p50, "ratio_p95": p95, "ratio_p99": p99}
    found["ratio_max"] = float(ratio.max())
    if settings.bounds is not None:
        low, high = settings.bounds
        found["clip_low_share"] = float((ratio < low).float().mean())
        found["clip_high_share"] = float((ratio > high).float().mean())
    return found


def _divided(part: Weighed, settings: Settings) -> tuple[float | None, str, bool]:
    """Measured denominator, what it counts, and whether nothing flows back that should."""
    gradient = part.passed.gradient
    divided, kind = denominator(part.micro, part.mask, part.slopes, settings.by_rows)
    if divided is not None or gradient is None:
        return divided, kind, False
    due = part.mask & (part.slopes.abs() > DUE)
    return None, "", bool(due.any()) and not bool(gradient.any())


def _product(loss: Any, factor: Any) -> float | None:
    if loss is None:
        return None
    return float(loss) * (1.0 if factor is None else float(factor))


def trail_of(parts: Sequence[Weighed]) -> list[dict[str, object]]:
    """`trail` of numerics.json: how many values are not finite, in the order of computation."""
    import torch

    counted: dict[str, list[Any]] = {}
    dtypes: dict[str, str] = {}
    for part in parts:
        passed, mask = part.passed, part.mask
        away = passed.logp - part.micro.old.to(passed.logp.dtype)
        places = {"logp": passed.logp, "log_ratio": away, "exp": torch.exp(away)}
        if passed.gradient is not None:
            places["grad"] = passed.gradient
        for name, values in places.items():
            finite = torch.isfinite(values)
            size = torch.where(finite, values.abs(), torch.zeros_like(values)).max()
            counts = torch.stack([(~finite).sum(), (~finite & ~mask).sum()])
            numbers = torch.cat([counts.double(), size.double().reshape(1)])
            counted.setdefault(name, []).append((values.numel(), numbers))
            # A gradient has the dtype of what it is of; its scale may have been divided by since.
            own = passed.logp if name == "grad" else values
            dtypes[name] = str(own.dtype).rpartition(".")[2]
    found: list[dict[str, object]] = []
    for name, each in counted.items():
        numbers = torch.stack([one[1] for one in each])
        off, masked = numbers[:, :2].sum(0).tolist()
        found.append({
            "name": "gradient of log-probs" if name == "grad" else name, "place": name,
            "dtype": dtypes[name], "n": sum(one[0] for one in each), "n_nonfinite": int(off),
            "n_nonfinite_masked": int(masked), "largest": float(numbers[:, 2].max()),
        })  # fmt: skip
    return found


def numbers_of(
    parts: Sequence[Weighed], settings: Settings, rows: Sequence[Mapping[str, Any]]
) -> dict[str, object]:
    """Scalars of the step, over the trained tokens and the rows of this process."""
    import torch

    sums = torch.stack([_sums(part, settings) for part in parts]).sum(0).double().tolist()
    n, entropy, surprise, kl, compared, apart, n_ratios, ratio, cut = sums
    n, n_ratios = max(n, 1.0), max(n_ratios, 1.0)
    largest = [torch.where(p.mask, p.ratio, torch.zeros_like(p.ratio)).max() for p in parts]
    found: dict[str, object] = {
        "ratio_mean": ratio / n_ratios,
        "ratio_max": float(torch.stack(largest).max()),
    }
    if settings.bounds is not None:
        found["clip_frac_total"] = cut / n_ratios
    first = parts[0]
    if first.passed.entropy is not None:
        found |= {"entropy": entropy / n, "surprise_mean": surprise / n}
    if "ref_per_token_logps" in first.micro.inputs:
        found["kl_ref"] = kl / n
    if compared:
        found["logprob_diff_mean"] = apart / compared
    losses = [_product(p.micro.loss, p.micro.factor) for p in parts]
    if all(loss is not None for loss in losses):
        found["loss"] = sum(loss for loss in losses if loss is not None)
    return {**found, **_of_rows(rows)}


def _sums(part: Weighed, settings: Settings) -> Any:
    """(9,) sums over the tokens of a micro-batch, in the order in which `numbers_of` takes them."""
    import torch

    micro, passed, mask = part.micro, part.passed, part.mask
    new = passed.logp.float()
    zero = torch.zeros_like(new)
    entropy = zero if passed.entropy is None else passed.entropy.float()
    reference = micro.inputs.get("ref_per_token_logps")
    away = zero if reference is None else micro.wide(reference.float()) - new
    kl = (torch.exp(away) - away - 1) * (part.ratio if settings.corrects_kl else 1.0)
    engine = micro.inputs.get("sampling_per_token_logps")
    nothing = torch.full_like(new, float("nan"))
    apart = nothing if engine is None else micro.wide(engine.float(), float("nan")) - new
    told = mask & torch.isfinite(apart)  # an engine need not score every token
    cut = zero
    if settings.bounds is not None:
        cut = cut_by_advantage(micro, part.ratio, settings.bounds).float()
    each = [(mask, v) for v in (mask.float(), entropy, -new - entropy, kl)]
    each += [(told, v) for v in (told.float(), apart.abs())]
    each += [(part.once, v) for v in (part.once.float(), part.ratio, cut)]
    return torch.stack([torch.where(where, v, zero).sum() for where, v in each])


def _of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Lengths and rewards of the rows that were generated."""
    if not rows:
        return {}
    lengths = [int(row["n_tokens"]) for row in rows]
    found: dict[str, object] = {
        "completion_length_mean": sum(lengths) / len(lengths),
        "completion_length_max": max(lengths),
        "truncation_rate": sum(row["finish"] == "length" for row in rows) / len(rows),
    }
    totals = [row["reward"] for row in rows if row["reward"] is not None]
    if totals:
        found["reward_mean"] = sum(totals) / len(totals)
    return found
