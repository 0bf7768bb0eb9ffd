"""The process that drives the training: it sees whole batches, deliveries and all numbers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from firstbad_recorder.plain import as_text
from firstbad_recorder.recorder import Recorder
from firstbad_recorder.surroundings import surroundings
from firstbad_recorder.verl import batch as batches
from firstbad_recorder.verl import where
from firstbad_recorder.verl.ledger import norm_of

_QUEUED = (
    "prompts", "responses", "response_mask", "rollout_log_probs", "old_log_probs", "ref_log_prob",
    "entropy", "rm_scores", "token_level_rewards", "advantages", "extra_fields", "reward_model",
)  # fmt: skip
"""Fields of V1's queue that are fetched; it leaves out those that it does not have."""
_MOST_TOKENIZER_BYTES = 32 * 2**20
_now: Driver | None = None


def of(trainer: Any) -> Driver | None:
    """What records a trainer; None where it can't be recorded."""
    global _now
    if _now is None or _now.trainer is not trainer:
        _now = quietly(_opened, trainer)
    return _now


def current() -> Driver | None:
    """What records the trainer of this process, if there is one."""
    return _now


def delivered(step: Any) -> None:
    """Weights were handed to the engines of this process's trainer."""
    if _now is not None:
        _now.quietly(_now.delivered, step)


def quietly(function: Callable[..., Any], *args: Any) -> Any:
    """Call what has no recorder yet; what it raises is said once, and goes no further."""
    try:
        return function(*args)
    except Exception as error:
        where.say_once(f"not recorded: {type(error).__name__}: {as_text(error)[:200]}")
        return None


def _opened(trainer: Any) -> Driver | None:
    folder = where.folder_of(trainer.config)
    if folder is None:
        where.say_once(f"not recorded: no {where.RECORD}, and no trainer.default_local_dir")
        return None
    return Driver(trainer, folder)


class Driver:
    """Records one trainer."""

    def __init__(self, trainer: Any, folder: str) -> None:
        """Start the record in a folder, or continue the one that is there."""
        self.trainer = trainer
        settings = quietly(where.settings_of, trainer.config)
        if settings and (tokenizer := getattr(trainer, "tokenizer", None)) is not None:
            for name in ("eos_token_id", "pad_token_id"):
                settings.setdefault(name, getattr(tokenizer, name, None))
        self._folder = folder
        about: dict[str, Any] = {**surroundings(), **where.options()}
        self.recorder = Recorder(folder, config=settings, framework="verl", **about)
        if threading.current_thread() is threading.main_thread():
            self.recorder.keep_on_signal()
        self._version: int | None = None
        """Steps that the delivered weights have seen."""
        self._entropy: Any = None
        self._seen: tuple[batches.Batch, dict[str, Any]] | None = None
        self._held: int | None = None

    def quietly(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a part of the recording; what it raises is counted and goes no further."""
        try:
            return function(*args)
        except Exception as error:
            self.recorder.lost(error)
            return None

    # ---- what verl's functions tell

    def delivered(self, step: Any) -> None:
        """The engines have the weights of a step."""
        if step is None:
            return
        self._version = int(step)
        self.recorder.sync(self._version, version=self._version)

    def scored(self, result: Any) -> None:
        """V0: the pass of old log-probs also gives the entropy, which is thrown away later."""
        output = result[0] if isinstance(result, tuple) else result
        self._entropy = output.batch.get("entropys", None)

    def taken(self, data: Any) -> int:
        """V0: the batch that the actor is updated on; returns the step's number."""
        entropy, self._entropy = self._entropy, None
        parts = data.meta_info.get("reward_extra_keys") or []
        parts = [name for name in parts if name in data.non_tensor_batch]
        found = batches.padded(data.batch, data.non_tensor_batch, entropy, parts)
        return self._looked_at(found)

    def fetched(self, meta: Any) -> int | None:
        """V1: the batch that the actor is updated on, fetched from the queue.

        Of a step with several updates the first one is recorded, which the weights that sampled
        it are updated on.
        """
        step = int(self.trainer.global_steps)
        if step == self._held:
            return None
        import transfer_queue

        data = transfer_queue.kv_batch_get(
            keys=meta.keys, partition_id=meta.partition_id, select_fields=list(_QUEUED)
        )
        return self._looked_at(batches.nested(data, meta.keys, meta.tags))

    def _looked_at(self, found: batches.Batch) -> int:
        correction = _chosen(self.trainer.config.algorithm, "rollout_correction")
        rejects = _chosen(correction, "rollout_rs") is not None
        self._seen = (found, batches.tokens_of(found, tools_by_engine=rejects))
        return int(self.trainer.global_steps)

    def logged(self, data: Mapping[str, Any], step: Any) -> None:
        """Verl's own numbers."""
        self.recorder.scalars(int(step), data)

    def hold(self, step: int, metrics: Mapping[str, Any] | None) -> None:
        """Hold the step with what the update gave; None where it raised."""
        if self._seen is None:
            return
        (found, tokens), self._seen = self._seen, None
        if self._held is None:
            self.quietly(self._save_tokenizer)
        self._held = step
        lines = self._lines(step, found)
        config = self.trainer.config
        filtered = _chosen(_chosen(config.algorithm, "filter_groups"), "enable")
        own = _numbers(tokens, lines)
        if own:
            self.recorder.scalars(step, own)
        about: dict[str, Any] = {
            "filters": "after" if filtered else "none",
            "first_pass": True,
            "policy_version": step - 1,
        }
        seeds = {"data": _chosen(config.data, "seed")}
        seeds["actor"] = _chosen(config.actor_rollout_ref.actor, "data_loader_seed")
        seeds["rollout"] = _chosen(config.actor_rollout_ref.rollout, "seed")
        about["seeds"] = {name: seed for name, seed in seeds.items() if seed is not None}
        whole = _whole(found, int(config.actor_rollout_ref.rollout.n))
        if whole is not None:
            about["whole_groups"] = whole
        ordered = self._in_order(found)
        if ordered is not None:
            about["in_order"] = ordered
        norms = _norms(metrics, _chosen(config.actor_rollout_ref.actor, "grad_clip"))
        if len(norms) == 1 and not self._one_update(found):
            norms = []  # a mean over the norms of several updates
        self.recorder.hold(
            step,
            rollouts=lines,
            tokens=tokens,
            numerics={"norms": norms} if norms else None,
            **about,
        )

    # ---- parts of it

    def _save_tokenizer(self) -> None:
        """The tokenizer's own file, so that tokens can be shown as text."""
        backend = getattr(getattr(self.trainer, "tokenizer", None), "backend_tokenizer", None)
        if backend is None:
            return
        text = backend.to_str()
        if len(text) <= _MOST_TOKENIZER_BYTES:
            with open(os.path.join(self._folder, "tokenizer.json"), "w", encoding="utf-8") as out:
                out.write(text)

    def _lines(self, step: int, found: batches.Batch) -> list[dict[str, object]]:
        tokenizer = getattr(self.trainer, "tokenizer", None)
        ends = _ends(tokenizer)
        longest = _chosen(self.trainer.config.data, "max_response_length")
        prompts = [found.prompt(i).tolist() for i in range(len(found.ids))]
        responses = [found.response(i).tolist() for i in range(len(found.ids))]
        score = found.sums("token_level_scores") or found.sums("rm_scores")
        total = found.sums("token_level_rewards") or score
        parts = found.facts.get("parts") or [{}] * len(prompts)
        versions = found.facts.get("version") or [self._version] * len(prompts)
        texts: dict[tuple[int, ...], str] = {}
        rows: list[dict[str, object]] = []
        for i, ids in enumerate(responses):
            row: dict[str, object] = {"sample": f"{step}-{i}", "n_tokens": len(ids)}
            if found.groups is not None:
                row["group"] = found.groups[i]
            if tokenizer is not None:
                key = tuple(prompts[i])
                if key not in texts:
                    texts[key] = tokenizer.decode(prompts[i], skip_special_tokens=True)
                row["prompt"] = texts[key]
                row["completion"] = tokenizer.decode(ids, skip_special_tokens=True)
            if (finish := _finish(ids, ends, longest)) is not None:
                row["finish"] = finish
            if total is not None:
                row["reward"] = total[i]
                row["rewards"] = parts[i] or {"score": (score or total)[i]}
            if (gold := found.facts["gold"][i]) is not None:
                row["gold"] = gold
            if (advantage := _mean_advantage(found, i)) is not None:
                row["advantage"] = advantage
            if versions[i] is not None:
                row["policy_version"] = int(versions[i])
            rows.append(row)
        return rows

    def _in_order(self, found: batches.Batch) -> bool | None:
        """Whether the rows stand as they were trained; None where ranks share several updates.

        Each rank has a part of the batch in it, so that a batch that is one update is in order.
        """
        config = self.trainer.config
        actor = config.actor_rollout_ref.actor
        if _chosen(actor, "shuffle"):
            return False
        processes = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
        return True if self._one_update(found) or processes == 1 else None

    def _one_update(self, found: batches.Batch) -> bool:
        config = self.trainer.config.actor_rollout_ref
        size = int(config.actor.ppo_mini_batch_size) * int(config.rollout.n)
        n = found.n_whole if found.n_whole is not None else len(found.ids)
        return n <= size and int(_chosen(config.actor, "ppo_epochs") or 1) == 1


def _chosen(settings: Any, name: str) -> Any:
    return None if settings is None else settings.get(name, None)


def _ends(tokenizer: Any) -> set[int]:
    found: set[int] = set()
    for name in ("eos_token_id", "pad_token_id"):
        value = getattr(tokenizer, name, None)
        found.update(
            value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        )
    return found


def _finish(ids: list[int], ends: set[int], longest: Any) -> str | None:
    """Why generation ended; None where neither the last token nor the length says it."""
    if not ids:
        return "error"  # aborted
    if ids[-1] in ends:
        return "stop"
    return "length" if longest is not None and len(ids) >= int(longest) else None


def _mean_advantage(found: batches.Batch, i: int) -> float | None:
    """Mean over the trained tokens of a row, over all of its response where none is trained."""
    rows, masks = found.responses.get("advantages"), found.responses.get("response_mask")
    if rows is None:
        return None
    mask = found.attended[i][found.widths[i] :].bool()
    if masks is not None and bool((trained := masks[i].bool()).any()):
        mask = trained
    return float(rows[i][mask].float().mean()) if bool(mask.any()) else None


def _whole(found: batches.Batch, size: int) -> bool | None:
    if found.groups is None:
        return None
    counts: dict[str, int] = {}
    for name in found.groups:
        counts[name] = counts.get(name, 0) + 1
    return all(n == size for n in counts.values())


def _norms(metrics: Mapping[str, Any] | None, clip: Any) -> list[dict[str, object]]:
    """Of each update: verl gives the norm before clipping."""
    values = (metrics or {}).get("actor/grad_norm")
    if values is None:
        return []
    each = values if isinstance(values, (list, tuple)) else [values]
    return [norm_of(float(value), clip) for value in each]


def _numbers(tokens: Mapping[str, Any], lines: list[dict[str, object]]) -> dict[str, object]:
    """Numbers that verl does not log, over the rows recorded."""
    found: dict[str, object] = {}
    mask = tokens.get("loss_mask")
    old, engine = tokens.get("logp_old"), tokens.get("logp_engine")
    if mask is not None and old is not None and bool(mask.any()):
        own = old[mask.bool()].double()
        entropy = tokens.get("entropy")
        if entropy is not None:
            found["surprise_mean"] = float((-own - entropy[mask.bool()]).mean())
        if engine is not None:
            found["logprob_diff_mean"] = float((own - engine[mask.bool()]).abs().mean())
    ended = [row.get("finish") for row in lines]
    if ended and None not in ended:
        found["truncation_rate"] = ended.count("length") / len(ended)
    return found
