"""Settings as they were asked for against those that ran."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

# Settings that reach sampling, loss or optimizer, by what they set. Of a nested name the last part
# counts; batch sizes, engines, logging, saving and places are left out: they may differ and train
# alike.
FAMILIES: dict[str, frozenset[str]] = {
    "lr": frozenset({
        "learning_rate", "lr", "lr_scheduler_type", "warmup_steps", "warmup_ratio",
        "lr_warmup_steps", "lr_warmup_steps_ratio", "lr_scheduler_kwargs",
    }),
    "kl": frozenset({
        "beta", "kl_coef", "kl_loss_coef", "use_kl_loss", "use_kl_in_reward", "kl_loss_type",
        "init_kl_coef",
    }),
    "cap": frozenset({"max_completion_length", "max_response_length", "generate_max_len"}),
    "prompt_cap": frozenset({"max_prompt_length", "prompt_max_len"}),
    "sampling": frozenset({
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty",
    }),
    "entropy": frozenset({"entropy_coef", "entropy_coeff", "entropy_loss_coef"}),
    "other": frozenset({
        "num_generations", "num_iterations", "ppo_epochs", "epsilon", "epsilon_high", "clip_ratio",
        "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "delta", "loss_type", "loss_agg_mode",
        "scale_rewards", "norm_adv_by_std_in_grpo", "reward_weights", "max_grad_norm", "grad_clip",
        "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "bf16", "fp16",
        "mask_truncated_completions", "importance_sampling_level",
        "top_entropy_quantile", "adv_estimator", "stop", "stop_token_ids", "ignore_eos",
        "sync_ref_model", "use_bias_correction_kl", "vllm_importance_sampling_correction",
        "vllm_importance_sampling_mode", "disable_dropout", "chat_template",
    }),
}  # fmt: skip
SAME = (
    {"true", "group"},  # scale_rewards
    {"false", "none"},
    {"true", "1"},
    {"false", "0"},
)
"""Two ways of writing one value."""


class Requested(Dated):
    """Settings asked for that another value ran for; the onset is the start of what they speak of.

    Only settings that both sides state, and that reach sampling, loss or optimizer.
    """

    from_recorder: bool
    """Both sides are of one process, by a flight recorder; else a command line is held against the
    settings that were saved."""
    n_compared: int
    n_differ: int
    n_families: int
    """Kinds of settings that differ, of the following."""
    lr_differs: bool
    kl_differs: bool
    cap_differs: bool
    cap_reached: bool | None
    """An answer is as long as the smaller of the two caps; None where lengths are not known."""
    prompt_cap_differs: bool
    sampling_differs: bool
    entropy_differs: bool
    other_differs: bool


@tool
def compare_requested(run: Run) -> Measured[Requested]:
    """Each setting as it was asked for against the one in force.

    Asked for: what a flight recorder keeps as `requested`, else the last command line in a log or
    in the tracker's metadata. Values that are the same in another way of writing are equal, and a
    request for nothing (null, `auto`, a count of -1) asks for nothing. Settings that differ between
    launches are left out.

    Cannot tell: a value that a wrapper changed before either was written; settings that one side
    calls by another name.
    """
    recorded = run.flight.requested
    asked: Mapping[str, object] = recorded or run.launch.values
    if not asked:
        raise NoData("no settings as they were asked for: a flight recorder's, or a command line")
    ran = run.config.values
    changed = (run.config.changed or frozenset()) if not recorded else frozenset()
    compared = {
        name: family
        for name in asked
        if _states(asked[name], ran.get(name)) and name not in changed and (family := _family(name))
    }
    if not compared:
        raise NoData("no setting stands both among those asked for and among those that ran")
    differ = [
        name
        for name in compared
        if not same(asked[name], ran[name])
        and not (name.endswith("top_k") and _no_top_k(asked[name]) and _no_top_k(ran[name]))
    ]
    families = {compared[name] for name in differ}
    metrics = Requested(
        from_recorder=bool(recorded),
        n_compared=len(compared),
        n_differ=len(differ),
        n_families=len(families),
        lr_differs="lr" in families,
        kl_differs="kl" in families,
        cap_differs="cap" in families,
        cap_reached=_reached(
            run,
            [v for n in differ if compared[n] == "cap" for v in map(_number, (asked[n], ran[n]))],
        ),
        prompt_cap_differs="prompt_cap" in families,
        sampling_differs="sampling" in families,
        entropy_differs="entropy" in families,
        other_differs="other" in families,
        from_start=bool(differ),
    )
    told = [f"`{n}` {_short(asked[n])} was asked for and {_short(ran[n])} ran" for n in differ]
    table = Table(
        title="settings that differ",
        columns=("setting", "asked for", "in force"),
        rows=tuple((name, _short(asked[name]), _short(ran[name])) for name in differ[:20]),
        cut_rows=max(0, len(differ) - 20),
    )
    return Measured(
        metrics,
        f"{len(compared)} settings asked for are also stated as in force: {len(differ)} differ",
        tables=(table,) if differ else (),
        sources=() if recorded else run.launch.sources,
        signal="settings in force",
        quote=("; ".join(told[:3]) + ("." if len(told) <= 3 else f"; and {len(told) - 3} more."))
        if told
        else "",
    )


def _states(asked: object, ran: object) -> bool:
    """Whether both are values that can be held against each other.

    A count of -1 leaves the number to the trainer; a text is not held against a file's name.
    """
    if asked is None or ran is None or str(asked).lower() == "auto" or _number(asked) == -1:
        return False
    texts = [value for value in (asked, ran) if isinstance(value, str)]
    return len({"\n" in text or "{{" in text for text in texts}) < 2


def _reached(run: Run, caps: Sequence[float | None]) -> bool | None:
    """Whether an answer is as long as the smallest of the caps, in tokens."""
    batches = run.rollouts.batches()
    longest = [float(b.n_tokens.max()) for b in batches if b.n_tokens is not None and len(b)]
    logged = run.signals.get("completion_length_max")
    if logged is not None and len(logged.values):
        longest.append(float(logged.values.max()))
    known = [cap for cap in caps if cap is not None]
    return max(longest) >= min(known) if longest and known else None


def _no_top_k(value: object) -> bool:
    """Whether the value means that all tokens are kept."""
    number = _number(value)
    return number is not None and number <= 0


def _family(name: str) -> str | None:
    last = name.rpartition(".")[2]
    return next((family for family, names in FAMILIES.items() if last in names), None)


def same(one: object, other: object) -> bool:
    """Whether two values are one, however they are written."""
    if isinstance(one, (list, tuple)) or isinstance(other, (list, tuple)):
        first, second = _items(one), _items(other)
        return len(first) == len(second) and all(map(same, first, second))
    numbers = [_number(value) for value in (one, other)]
    if numbers[0] is not None and numbers[1] is not None:
        return math.isclose(numbers[0], numbers[1], rel_tol=1e-6)
    texts = {_plain(one), _plain(other)}
    return len(texts) == 1 or texts in SAME


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None


def _plain(value: object) -> str:
    """`SchedulerType.COSINE`, as some write an enum, is `cosine`."""
    return str(value).strip().rpartition(".")[2].lower()


def _short(value: object) -> str:
    text = "".join(c for c in str(value) if c.isprintable() and c != "`")
    return text if len(text) <= 40 else text[:40] + "…"
