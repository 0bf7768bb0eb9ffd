"""One optimizer step of this process: tokens, ledger, numerics and numbers of its micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstbad_recorder.trl.micro import (
    DUE,
    Micro,
    Settings,
    cut_by_advantage,
    denominator,
    ratios,
    slope,
)
from firstbad_recorder.trl.rows import PADDING, SAMPLED, SOURCE


@dataclass
class Step:
    """What was seen of the step so far."""

    micros: list[Micro] = field(default_factory=list)
    norms: list[dict[str, object]] = field(default_factory=list)
    parameters: list[dict[str, object]] = field(default_factory=list)
    trail: list[dict[str, object]] = field(default_factory=list)
    """Of a watched pass, where the gradient was not finite."""
    first_nonfinite: dict[str, object] = field(default_factory=dict)


def tokens_of(micros: Sequence[Micro], masks: Sequence[Any]) -> dict[str, Any]:
    """Flat arrays of tokens.safetensors, rows of all micro-batches behind one another."""
    import torch

    parts: dict[str, list[Any]] = {}
    offsets = [0]
    for micro, mask in zip(micros, masks):
        passed = micro.passed
        assert passed is not None
        rows, width = passed.ids.shape
        offsets += [offsets[-1] + width * (i + 1) for i in range(rows)]
        arrays = {
            "token_id": passed.ids,
            "source": sources_in(micro),
            "attention_mask": passed.attended,
            "loss_mask": placed(mask.to(torch.uint8), width, 0),
            "logp_new": passed.logp.float(),
            "logp_old": micro.old,  # what ratios are taken against: here it may be the pass itself
            "logp_ref": micro.inputs.get("ref_per_token_logps"),
            "logp_engine": micro.inputs.get("sampling_per_token_logps"),
            "entropy": passed.entropy,
            "logp_recheck": micro.checked.get("recheck"),
            "logp_layout": micro.checked.get("layout"),
            "varentropy": micro.checked.get("varentropy"),
        }
        made = sources_in(micro) >= SAMPLED
        for name, values in arrays.items():
            if values is None:
                continue
            if values.shape[1] != width:
                values = placed(micro.wide(values.float(), float("nan")), width, float("nan"))
            if name.startswith("logp") or "entropy" in name:
                values = values.float().masked_fill(~made, float("nan"))
            parts.setdefault(name, []).append(values.reshape(-1))
        advantage = micro.advantage
        if advantage.shape[1] == 1:
            advantage = advantage.expand(rows, width)
        else:
            advantage = placed(advantage, width, 0.0)
        parts.setdefault("advantage", []).append(advantage.reshape(-1))
    n = offsets[-1]
    found: dict[str, Any] = {"offsets": offsets}
    for name, values in parts.items():
        whole = torch.cat([v.detach() for v in values])
        if whole.numel() == n:  # an array that some micro-batches lack is left out
            found[name] = whole.cpu()
        elif name in ("logp_recheck", "logp_layout", "varentropy"):
            found[name] = torch.cat([
                v if (v := _checked(micro, name)) is not None else
                torch.full((micro.passed.ids.numel(),), float("nan"), device=whole.device)
                for micro in micros if micro.passed is not None
            ]).cpu()  # fmt: skip
    return found


def _checked(micro: Micro, name: str) -> Any:
    """Flat array of a further pass, or None where this micro-batch had none."""
    values = micro.checked.get(name.replace("logp_", ""))
    if values is None:
        return None
    assert micro.passed is not None
    wide = placed(values, micro.passed.ids.shape[1], float("nan"))
    return wide.masked_fill(sources_in(micro) < SAMPLED, float("nan")).reshape(-1)


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


def ledger_of(
    micros: Sequence[Micro],
    masks: Sequence[Any],
    settings: Settings,
    rank: int,
    world_size: int,
) -> list[dict[str, object]]:
    """Lines of microbatches.jsonl: denominators and losses as they were measured."""
    import torch

    measured = [_divided(micro, mask, settings) for micro, mask in zip(micros, masks)]
    known = [divided for divided, _, _ in measured if divided is not None]
    found: list[dict[str, object]] = []
    for micro, mask, (divided, kind, silent) in zip(micros, masks, measured):
        passed = micro.passed
        assert passed is not None
        weights, once = ratios(micro, mask, settings)
        ratio = weights[once]
        row: dict[str, object] = {
            "update": micro.update,
            "epoch": micro.update,
            "rank": rank,
            "microbatch": micro.number,
            "samples": [str(line["sample"]) for line in micro.lines],
            "n_samples": len(micro.rows),
            "n_tokens": int(mask.sum()),
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
        if ratio.numel():
            quantiles = torch.tensor([0.5, 0.95, 0.99], device=ratio.device, dtype=ratio.dtype)
            p50, p95, p99 = torch.quantile(ratio[: 2**24], quantiles).tolist()
            row |= {"ratio_p50": p50, "ratio_p95": p95, "ratio_p99": p99}
            row["ratio_max"] = float(ratio.max())
            row["clip_low_share"] = float((ratio < 1 - settings.epsilon_low).float().mean())
            row["clip_high_share"] = float((ratio > 1 + settings.epsilon_high).float().mean())
        found.append(row)
    return found


def _divided(micro: Micro, mask: Any, settings: Settings) -> tuple[float | None, str, bool]:
    """Measured denominator, what it counts, and whether nothing flows back that should."""
    slopes = slope(micro, settings)
    divided, kind = denominator(micro, mask, slopes, settings.by_rows)
    passed = micro.passed
    assert passed is not None
    if divided is not None or passed.gradient is None:
        return divided, kind, False
    due = mask & (slopes.abs() > DUE)
    return None, "", bool(due.any()) and not bool(passed.gradient.any())


def _product(loss: Any, factor: Any) -> float | None:
    if loss is None:
        return None
    return float(loss) * (1.0 if factor is None else float(factor))


def trail_of(micros: Sequence[Micro], masks: Sequence[Any]) -> list[dict[str, object]]:
    """`trail` of numerics.json: how many values are not finite, in the order of computation."""
    import torch

    counted: dict[str, list[Any]] = {}
    dtypes: dict[str, str] = {}
    for micro, mask in zip(micros, masks):
        passed = micro.passed
        assert passed is not None
        away = passed.logp - micro.old.to(passed.logp.dtype)
        places = {"logp": passed.logp, "log_ratio": away, "exp": torch.exp(away)}
        if passed.gradient is not None:
            places["grad"] = passed.gradient
        for name, values in places.items():
            finite = torch.isfinite(values)
            size = torch.where(finite, values.abs(), torch.zeros_like(values)).max()
            counts = torch.stack([(~finite).sum(), (~finite & ~mask).sum()])
            numbers = torch.cat([counts.double(), size.double().reshape(1)])
            counted.setdefault(name, []).append((values.numel(), numbers))
            dtypes[name] = str(values.dtype).rpartition(".")[2]
    found: list[dict[str, object]] = []
    for name, parts in counted.items():
        numbers = torch.stack([part[1] for part in parts])
        off, masked = numbers[:, :2].sum(0).tolist()
        found.append({
            "name": "gradient of log-probs" if name == "grad" else name, "place": name,
            "dtype": dtypes[name], "n": sum(part[0] for part in parts), "n_nonfinite": int(off),
            "n_nonfinite_masked": int(masked), "largest": float(numbers[:, 2].max()),
        })  # fmt: skip
    return found


def numbers_of(
    micros: Sequence[Micro],
    masks: Sequence[Any],
    settings: Settings,
    rows: Sequence[Mapping[str, Any]],
) -> dict[str, object]:
    """Scalars of the step, over the trained tokens and the rows of this process."""
    import torch

    sums: list[Any] = []
    largest: list[Any] = []
    for micro, mask in zip(micros, masks):
        passed = micro.passed
        assert passed is not None
        new = passed.logp.float()
        ratio, once = ratios(micro, mask, settings)
        cut = cut_by_advantage(micro, ratio, settings.epsilon_low, settings.epsilon_high)
        zero = torch.zeros_like(new)
        entropy = zero if passed.entropy is None else passed.entropy.float()
        reference = micro.inputs.get("ref_per_token_logps")
        away = zero if reference is None else micro.wide(reference.float()) - new
        engine = micro.inputs.get("sampling_per_token_logps")
        apart = zero if engine is None else (micro.wide(engine.float()) - new).abs()
        kl = (torch.exp(away) - away - 1) * (ratio if settings.corrects_kl else 1.0)
        each = [(mask, v) for v in (mask.float(), entropy, -new - entropy, kl, apart)]
        each += [(once, v) for v in (once.float(), ratio, cut.float())]
        sums.append(torch.stack([torch.where(where, v, zero).sum() for where, v in each]))
        largest.append(torch.where(mask, ratio, zero).max())
    totals = torch.stack(sums).sum(0).double().tolist()
    n, entropy, surprise, kl, apart, n_ratios, ratio, cut = totals
    n, n_ratios = max(n, 1.0), max(n_ratios, 1.0)
    found: dict[str, object] = {
        "ratio_mean": ratio / n_ratios,
        "ratio_max": float(torch.stack(largest).max()),
        "clip_frac_total": cut / n_ratios,
    }
    first = micros[0]
    if first.passed is not None and first.passed.entropy is not None:
        found |= {"entropy": entropy / n, "surprise_mean": surprise / n}
    if "ref_per_token_logps" in first.inputs:
        found["kl_ref"] = kl / n
    if "sampling_per_token_logps" in first.inputs:
        found["logprob_diff_mean"] = apart / n
    losses = [_product(m.loss, m.factor) for m in micros]
    if all(loss is not None for loss in losses):
        found["loss"] = sum(loss for loss in losses if loss is not None)
    lengths = [int(row["n_tokens"]) for row in rows]
    if lengths:
        found["completion_length_mean"] = sum(lengths) / len(lengths)
        found["completion_length_max"] = max(lengths)
        found["truncation_rate"] = sum(row["finish"] == "length" for row in rows) / len(rows)
        totals = [row["reward"] for row in rows if row["reward"] is not None]
        if totals:
            found["reward_mean"] = sum(totals) / len(totals)
    return found
