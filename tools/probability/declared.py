"""What the run's own files declare: settings that decide how other figures are read."""

from __future__ import annotations

from firstbad.tools.accumulation.loss_forms import KNOWN, OF_LOG_PROBS
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.updates import updates_per_batch

SHOWN = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "max_steps",
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "num_iterations",
    "beta",
    "epsilon",
    "epsilon_high",
    "loss_type",
    "scale_rewards",
    "reward_weights",
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "max_completion_length",
    "mask_truncated_completions",
    "max_grad_norm",
    "entropy_coef",
    "use_vllm",
    "eval_strategy",
    "bf16",
    "fp16",
    "logging_steps",
    "seed",
)


class Declared(Metrics):
    """Settings as declared; None where no file states them."""

    n_settings: int
    accumulation_steps: float | None
    updates_per_batch: float | None
    engine_used: bool | None
    low_precision: bool | None
    beta: float | None
    max_grad_norm: float | None
    evaluates: bool | None
    """Whether evaluations are run during training (`eval_strategy`)."""
    entropy_coefficient: float | None
    loss_from_rollouts: bool
    """False where a loss type is stated whose value does not follow from rollouts alone."""
    temperature: float | None
    top_p: float | None
    top_k: float | None
    repetition_penalty: float | None


@tool
def read_declared(run: Run) -> Measured[Declared]:
    """Settings that the run's configuration files declare.

    Cannot tell: what really ran; a wrapper may have dropped a value on the way.
    """
    config = run.config
    if not config.values:
        raise NoData("no configuration file (args.json, config.json, config.yaml)")
    low = [config.flag("bf16"), config.flag("fp16")]
    loss = config.text("loss_type")
    metrics = Declared(
        n_settings=len(config.values),
        accumulation_steps=config.number("gradient_accumulation_steps"),
        updates_per_batch=updates_per_batch(run),
        engine_used=config.flag("use_vllm"),
        low_precision=True if True in low else None if None in low else False,
        beta=config.number("beta"),
        max_grad_norm=config.number("max_grad_norm"),
        evaluates=None if (when := config.text("eval_strategy")) is None else when != "no",
        entropy_coefficient=config.number("entropy_coef"),
        loss_from_rollouts=loss is None or (loss in KNOWN and loss not in OF_LOG_PROBS),
        temperature=config.number("temperature"),
        top_p=config.number("top_p"),
        top_k=config.number("top_k"),
        repetition_penalty=config.number("repetition_penalty"),
    )
    rows = tuple((k, str(config.values[k])[:120]) for k in SHOWN if k in config.values)
    return Measured(
        metrics,
        _told(metrics),
        tables=(Table(title="declared settings", columns=("setting", "value"), rows=rows),),
    )


def _told(m: Declared) -> str:
    engine = {
        True: "a separate engine samples",
        False: "no separate engine",
        None: "engine unknown",
    }
    numbers = (
        ("updates per batch", m.updates_per_batch),
        ("accumulation steps", m.accumulation_steps),
        ("beta", m.beta),
    )
    parts = [f"{name} {value:g}" for name, value in numbers if value is not None]
    return f"declared: {', '.join([*parts, engine[m.engine_used]])}"
