"""A training batch of verl in one shape, from the padded tensors of V0 or the ragged ones of V1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstbad_recorder.sources import PADDING, PROMPT, SAMPLED, TOOL

MOST_TOKENS = 2**19
"""Places of one step that are recorded; of larger steps so many whole groups as fit."""
_RESPONSE = {
    "response_mask": "loss_mask",
    "old_log_probs": "logp_old",
    "rollout_log_probs": "logp_engine",
    "ref_log_prob": "logp_ref",
    "advantages": "advantage",
    "entropy": "entropy",
}
"""Arrays over response tokens, by verl's name and the record's."""


@dataclass
class Batch:
    """R rows, each a prompt and a response with the padding that the tensors had."""

    ids: list[Any]
    """(T,) tokens of each row."""
    attended: list[Any]
    """(T,)"""
    widths: list[int]
    """Places of each row that the prompt takes."""
    responses: dict[str, list[Any]]
    """Arrays over response places by verl's name, (T - width,) for each row."""
    position: list[Any] | None = None
    groups: list[str] | None = None
    facts: dict[str, Sequence[Any]] = field(default_factory=dict)
    """What else is known of each row: `gold`, `version`, and parts of the reward as `parts`."""
    n_whole: int | None = None
    """Rows that the step has, where not all of them are here."""

    def response(self, i: int) -> Any:
        """(n,) tokens of a row's response, without padding."""
        width = self.widths[i]
        return self.ids[i][width:][self.attended[i][width:].bool()]

    def prompt(self, i: int) -> Any:
        """(n,) tokens of a row's prompt, without padding."""
        width = self.widths[i]
        return self.ids[i][:width][self.attended[i][:width].bool()]

    def sums(self, name: str) -> list[float] | None:
        """Sum of an array over each response, or None where it is not there."""
        values = self.responses.get(name)
        return None if values is None else [float(v.sum()) for v in values]


def padded(
    tensors: Mapping[str, Any],
    others: Mapping[str, Any],
    entropy: Any,
    parts: Sequence[str],
    most: int = MOST_TOKENS,
) -> Batch:
    """From the `DataProto` of V0: (R, P) prompts padded on the left, (R, C) responses on the right.

    Args:
        tensors: `batch` of the `DataProto`.
        others: Its `non_tensor_batch`.
        entropy: (R, C) from the pass of old log-probs, or None.
        parts: Keys of `others` that the reward function gave beside the score.
        most: Places to record at most.
    """
    prompts, attended = tensors["prompts"], tensors["attention_mask"]
    n, width = prompts.shape
    ids = tensors.get("input_ids", None)
    if ids is None:
        import torch

        ids = torch.cat([prompts, tensors["responses"]], dim=1)
    used = (attended != 0).any(dim=0)
    if "response_mask" in tensors:
        used[width:] |= (tensors["response_mask"] != 0).any(dim=0)
    places = used.nonzero()
    first = min(int(places[0]), width - 1) if len(places) else 0
    last = max(int(places[-1]) + 1, width + 1) if len(places) else ids.shape[1]
    groups = [str(uid) for uid in others["uid"]] if "uid" in others else None
    keep = chosen(groups, [last - first] * n, most)
    arrays = {name: tensors[name] for name in (*_RESPONSE, *_SCORES) if name in tensors}
    if entropy is not None and entropy.shape == tensors["responses"].shape:
        arrays["entropy"] = entropy
    position = tensors.get("position_ids", None)
    if position is not None and position.dim() != 2:
        position = None  # several axes for pictures: no place in a text
    return Batch(
        ids=[ids[i, first:last].cpu() for i in keep],
        attended=[attended[i, first:last].cpu() for i in keep],
        widths=[width - first] * len(keep),
        responses={
            name: [values[i, : last - width].detach().cpu() for i in keep]
            for name, values in arrays.items()
        },
        position=None if position is None else [position[i, first:last].cpu() for i in keep],
        groups=None if groups is None else [groups[i] for i in keep],
        facts={
            "gold": [_gold(others, i) for i in keep],
            "parts": [_parts({name: others[name][i] for name in parts}) for i in keep],
        },
        n_whole=n if len(keep) < n else None,
    )


def nested(
    data: Any, keys: Sequence[str], tags: Sequence[Mapping[str, Any]], most: int = MOST_TOKENS
) -> Batch:
    """From what V1 keeps in its queue: ragged rows without padding.

    Args:
        data: What was fetched, by name, row for row as `keys`.
        keys: `<uid>_<session>_<index>` of each row.
        tags: Of each row; rows of padding say so there.
        most: Places to record at most.
    """
    import torch

    prompts, responses = data["prompts"].unbind(), data["responses"].unbind()
    real = [i for i, tag in enumerate(tags) if not tag.get("is_padding", False)]
    names = [keys[i].rsplit("_", 2)[0] for i in real]
    lengths = [len(prompts[i]) + len(responses[i]) for i in real]
    keep = [real[k] for k in chosen(names, lengths, most)]
    there = set(data.keys())
    arrays = {name: data[name].unbind() for name in (*_RESPONSE, *_SCORES) if name in there}
    extra = _each(data["extra_fields"]) if "extra_fields" in there else []
    said = [_plain(extra[i]) if len(extra) > i else {} for i in keep]
    asked = _each(data["reward_model"]) if "reward_model" in there else []
    ids = [torch.cat([prompts[i], responses[i]]).cpu() for i in keep]
    return Batch(
        ids=ids,
        attended=[torch.ones_like(row) for row in ids],
        widths=[len(prompts[i]) for i in keep],
        responses={
            name: [values[i].detach().cpu() for i in keep] for name, values in arrays.items()
        },
        position=[torch.arange(len(row)) for row in ids],
        groups=[keys[i].rsplit("_", 2)[0] for i in keep],
        facts={
            "gold": [_answer(_plain(asked[i])) if len(asked) > i else None for i in keep],
            "parts": [_parts(row.get("reward_extra_info") or {}) for row in said],
            "version": [tags[i].get("min_global_steps") for i in keep],
        },
        n_whole=len(real) if len(keep) < len(real) else None,
    )


_SCORES = ("token_level_scores", "token_level_rewards", "rm_scores")


def chosen(groups: Sequence[str] | None, lengths: Sequence[int], most: int) -> list[int]:
    """Rows that are recorded, in their order: all, or whole groups as far as `most` places go."""
    if sum(lengths) <= most:
        return list(range(len(lengths)))
    names = groups if groups is not None else [str(i) for i in range(len(lengths))]
    size: dict[str, int] = {}
    for name, length in zip(names, lengths):
        size[name] = size.get(name, 0) + length
    kept: set[str] = set()
    taken = 0
    for name, length in size.items():
        if kept and taken + length > most:
            break
        kept.add(name)
        taken += length
    return [i for i, name in enumerate(names) if name in kept]


def tokens_of(batch: Batch, tools_by_engine: bool = False) -> dict[str, Any]:
    """Flat arrays of tokens.safetensors.

    Args:
        batch: R rows.
        tools_by_engine: The mask also leaves out tokens that were sampled (those that a correction
            rejected): what the engine gave no log-prob for is a tool's then, as verl fills in 0.
    """
    import torch

    offsets = [0]
    for row in batch.ids:
        offsets.append(offsets[-1] + len(row))
    sources = [_sources(batch, i, tools_by_engine) for i in range(len(batch.ids))]
    found: dict[str, Any] = {
        "offsets": offsets,
        "token_id": torch.cat(batch.ids),
        "attention_mask": torch.cat(batch.attended).to(torch.uint8),
        "source": torch.cat(sources),
    }
    if batch.position is not None:
        found["position"] = torch.cat(batch.position)
    made = found["source"] == SAMPLED
    for name, to in _RESPONSE.items():
        rows = batch.responses.get(name)
        if rows is None:
            continue
        if to == "loss_mask":
            found[to] = torch.cat(_placed(batch, rows, 0)).to(torch.uint8)
        elif to == "advantage":
            found[to] = torch.cat(_placed(batch, rows, 0.0)).float()
        else:
            whole = torch.cat(_placed(batch, rows, float("nan")))
            found[to] = whole.float().masked_fill(~made, float("nan"))
    return found


def _placed(batch: Batch, rows: Sequence[Any], fill: float) -> list[Any]:
    import torch

    found = []
    for values, width in zip(rows, batch.widths):
        found += [torch.full((width,), fill, dtype=values.dtype), values]
    return found


def _sources(batch: Batch, i: int, by_engine: bool) -> Any:
    import torch

    width, attended = batch.widths[i], batch.attended[i].bool()
    found = torch.where(attended, PROMPT, PADDING)
    found[width:] = torch.where(attended[width:], SAMPLED, PADDING)
    mask = batch.responses.get("response_mask")
    if mask is not None:
        left_out = ~mask[i].bool()
        engine = batch.responses.get("rollout_log_probs")
        if by_engine and engine is not None:
            left_out &= engine[i] == 0
        found[width:][left_out & attended[width:]] = TOOL
    return found.to(torch.uint8)


def _gold(others: Mapping[str, Any], i: int) -> object:
    return _answer(others["reward_model"][i]) if "reward_model" in others else None


def _answer(asked: Any) -> object:
    return asked.get("ground_truth") if isinstance(asked, Mapping) else None


def _each(values: Any) -> list[Any]:
    """What each row has, of a `NonTensorStack` or a list."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _plain(value: Any) -> Any:
    """What a `NonTensorData` holds."""
    return getattr(value, "data", value)


def _parts(values: Mapping[str, Any]) -> dict[str, float]:
    """Those that are numbers."""
    found = {}
    for name, value in values.items():
        if hasattr(value, "item"):
            try:
                value = value.item()
            except (ValueError, RuntimeError):
                continue
        if isinstance(value, (bool, int, float)):
            found[str(name)] = float(value)
    return found
