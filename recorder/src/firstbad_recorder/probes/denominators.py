"""Every normalisation of the loss in use, each with what it makes count more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firstbad_recorder.probes.kl_term import estimator
from firstbad_recorder.probes.weighting import COUNTS_MORE

BY_NAME = {
    "grpo": "row_mean_of_token_mean",
    "sapo": "row_mean_of_token_mean",
    "bnpo": "token_mean",
    "dapo": "token_mean",
    "cispo": "token_mean",
    "vespo": "token_mean",
    "dr_grpo": "row_mean_of_token_sum",
    "luspo": "row_mean_of_token_sum",
    "token-mean": "token_mean",
    "token-sum": "token_sum",
    "seq-mean-token-mean": "row_mean_of_token_mean",
    "seq-mean-token-sum": "row_mean_of_token_sum",
    "seq-mean-token-sum-norm": "row_mean_of_token_sum",
}
"""Reduction by the word of TRL (`loss_type`) or verl (`loss_agg_mode`)."""

OVER_ALL = ("dapo", "cispo", "vespo")
"""TRL's losses that are divided by the tokens of all micro-batches and ranks."""


def denominators(
    config: Mapping[str, Any] | None = None, found: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The audit, from settings in force and from what probing found.

    Args:
        config: Settings under TRL's or verl's names; nested ones by the last part of their name.
        found: What `loss_function.examine` gives.

    Returns:
        A list of `{"what", "is", "source", "counts_more"}`: the term that is normalised, how, from
        `config` or `probe`, and what that makes count more. What neither tells is left out.
        `disagrees` is True in entries whose setting is not what probing found.
    """
    settings = {str(k).rpartition(".")[2]: v for k, v in (config or {}).items()}
    audit = [*_advantage(settings), *_loss(settings, found), *_accumulation(settings)]
    if found is not None:
        audit += [*_kl(found), *_weights(found)]
    return [*audit, *_gradient(settings)]


def _entry(what: str, is_: str, source: str, counts_more: str, **more: Any) -> dict[str, Any]:
    return {"what": what, "is": is_, "source": source, "counts_more": counts_more, **more}


def _advantage(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    scaled = settings.get("scale_rewards", settings.get("norm_adv_by_std_in_grpo"))
    if scaled is None:
        return []
    what = "advantage"
    if scaled in (False, "none", "False"):
        text = "prompts whose scores differ widely: the spread of a group is not divided out"
        return [_entry(what, "group mean subtracted, not divided", "config", text)]
    if scaled == "batch":
        text = "prompts whose scores differ widely; a batch of little spread counts as much as any"
        return [_entry(what, "divided by the standard deviation of the batch", "config", text)]
    text = (
        "prompts with nearly equal scores (nearly all right, nearly all wrong): their few "
        "exceptions get the largest advantages"
    )
    return [_entry(what, "divided by the standard deviation of its group", "config", text)]


def _loss(settings: Mapping[str, Any], found: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    word = settings.get("loss_agg_mode") or settings.get("loss_type")
    stated = BY_NAME.get(str(word).lower())
    audit = []
    if stated is not None:
        is_ = f"{word}: {stated}"
        length = settings.get("max_completion_length")
        if word == "dr_grpo" and length:
            is_ += f", divided by max_completion_length {length}"
        audit.append(_entry("policy term", is_, "config", COUNTS_MORE[stated]))
    if found is None:
        return audit
    reduction = found["reduction"]
    name = reduction.get("name")
    if name is None:
        text = "not known: the weights of tokens follow none of the known reductions"
        return [*audit, _entry("policy term", "none of the known ones", "probe", text)]
    is_ = name
    if "constant" in reduction:
        is_ += f", divided by {reduction['constant']:.6g}"
    elif abs(reduction["factor"] - 1) > 0.01:
        is_ += f", times {reduction['factor']:.6g}"
    more = {} if stated is None else {"disagrees": not _same(str(word), stated, name)}
    audit.append(_entry("policy term", is_, "probe", COUNTS_MORE[name], **more))
    if reduction["masked_share"] > 0.01:
        share = f"weight {reduction['masked_share']:.3g} of a trained token"
        text = "padding, prompt and tool tokens: places that must not be trained"
        audit.append(_entry("places outside the loss mask", share, "probe", text))
    return audit


def _same(word: str, stated: str, name: str) -> bool:
    """A token mean whose denominator comes from outside is a sum to the function itself."""
    return name.removeprefix("trained_") == stated or (word in OVER_ALL and name == "token_sum")


def _accumulation(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    steps = settings.get("gradient_accumulation_steps")
    word = str(settings.get("loss_type"))
    if not isinstance(steps, int) or steps < 2 or word not in BY_NAME:
        return []
    if word in OVER_ALL:
        text = "every token of the accumulated batch alike"
        return [_entry("micro-batches", "tokens of the whole batch", "config", text)]
    text = "every micro-batch alike"
    if word == "bnpo":
        text += ": tokens of micro-batches with few tokens count more"
    return [_entry("micro-batches", f"mean over {steps}", "config", text)]


def _kl(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    name = (found["kl"].get("reduction") or {}).get("name")
    if name is None:
        return []
    is_ = f"{name}, {estimator(found['kl'])} with coefficient {found['kl']['coefficient']:.4g}"
    text = COUNTS_MORE[name]
    if name != found["reduction"].get("name"):
        text += "; not the reduction of the policy term: their balance moves with length"
    return [_entry("KL term", is_, "probe", text)]


def _weights(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    audit = []
    if found["ratio"].get("level", "token") != "token":
        text = "rows as a whole: one ratio for all tokens of a row, cut or kept together"
        audit.append(_entry("ratio", found["ratio"]["level"], "probe", text))
    engine = found["engine"]
    if engine["used"]:
        limit = "" if engine["high"] is None else f", {engine['form']} at {engine['high']:.4g}"
        text = "tokens that the trainer finds likelier than the engine did"
        audit.append(_entry("engine weight", engine["level"] + limit, "probe", text))
    weight = found["ratio"].get("negative_weight")
    if weight is not None and abs(weight - 1) > 0.02:
        text = "rows with a positive advantage" if weight < 1 else "rows with a negative advantage"
        audit.append(_entry("sign of the advantage", f"negative times {weight:.4g}", "probe", text))
    return audit


def _gradient(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    limit = settings.get("max_grad_norm", settings.get("grad_clip"))
    if not isinstance(limit, (int, float)) or limit <= 0:
        return []
    text = "batches with a small gradient: those above the limit all count the same"
    return [_entry("gradient", f"norm cut at {limit:g}", "config", text)]
