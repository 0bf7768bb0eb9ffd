"""What each loss type is at ratio 1, by hand, and where no identity is claimed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from firstbad.tools.accumulation.loss_forms import left_out_by_version
from firstbad.tools.run import RolloutBatch, Run, Signal

TOOL = "check_loss_identity"
MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
STEPS = range(1, 21)
CAP = 64


def rollouts(batch: MakeBatch) -> list[RolloutBatch]:
    """Three rows a step with A = 2, -1 and -s/10, and 10, 10 + s and 4 tokens."""
    return [
        batch(
            s,
            rewards={"correct": [1, 0, 0]},
            advantage=[2, -1, -s / 10],
            n_tokens=[10, 10 + s, 4],
        )
        for s in STEPS
    ]


def by_hand(kind: str, s: int) -> float:
    advantage, n = (2, -1, -s / 10), (10, 10 + s, 4)
    summed = -sum(a * t for a, t in zip(advantage, n, strict=True))
    return {
        "dapo": summed / sum(n),
        "bnpo": summed / sum(n),
        "grpo": -sum(advantage) / 3,
        # 2A/t with t = 1 above 0 and 1.05 below
        "sapo": -(2 * 2 + (-1 - s / 10) * 2 / 1.05) / 3,
        "dr_grpo": summed / (3 * CAP),
        "luspo": summed / 3,
        "seq-mean-token-sum": summed / 3,
        "seq-mean-token-sum-norm": summed / (3 * 500),
        "token-sum": summed,
    }[kind]


KINDS = (
    "dapo",
    "bnpo",
    "grpo",
    "sapo",
    "dr_grpo",
    "luspo",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "token-sum",
)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_value_at_ratio_1(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, kind: str, level: str
) -> None:
    config = {
        "loss_type": kind,
        "max_completion_length": CAP,
        "loss_scale_factor": 500,
        "importance_sampling_level": level,
    }
    logged = [by_hand(kind, s) for s in STEPS]
    found = measure(
        TOOL, make_run(rollouts=rollouts(batch), signals={"loss": logged}, config=config)
    )
    assert found["slope"] == pytest.approx(1, abs=1e-4)
    assert found["correlation"] == 1
    assert found["first_bad_step"] is None
    # The other types give another loss: what is told apart is not told by chance.
    for other in set(KINDS) - {kind}:
        if by_hand(other, 3) != pytest.approx(by_hand(kind, 3)):
            run = make_run(
                rollouts=rollouts(batch),
                signals={"loss": [by_hand(other, s) for s in STEPS]},
                config=config,
            )
            told = measure(TOOL, run)
            assert told["slope_deviation"] > 0.15 or told["correlation_least"] < 0.99


@pytest.mark.parametrize("kind", ["grpo", "sapo", "luspo", "dapo"])
def test_the_kl_term_is_weighed_as_the_loss_is(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, kind: str
) -> None:
    # KL (s % 7)/10 per token in all rows; luspo sums over the 24 + s tokens of three rows.
    beta = 0.5
    logged = [
        by_hand(kind, s) + beta * (s % 7) / 10 * ((24 + s) / 3 if kind == "luspo" else 1)
        for s in STEPS
    ]
    signals = {"loss": logged, "kl_ref": [(s % 7) / 10 for s in STEPS]}
    config = {"loss_type": kind, "beta": beta}
    run = make_run(rollouts=rollouts(batch), signals=signals, config=config)
    found = measure(TOOL, run)
    assert found["slope"] == pytest.approx(1, abs=1e-4)
    assert found["kl_coefficient"] == pytest.approx(1, abs=1e-3)


def test_verl_logs_kl_as_it_aggregates_it(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    kind, kl = "seq-mean-token-sum", [(s % 7) / 10 for s in STEPS]
    logged = [by_hand(kind, s) + 0.5 * k for s, k in zip(STEPS, kl, strict=True)]
    run = make_run(
        rollouts=rollouts(batch),
        signals={"loss": logged, "kl_ref": kl},
        config={"loss_type": kind, "beta": 0.5},
        framework="verl",
    )
    assert measure(TOOL, run)["kl_coefficient"] == pytest.approx(1, abs=1e-3)


def test_rows_left_out_keep_their_place_in_a_mean_over_rows(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # A third row is cut at 40 tokens and masked: it still counts in the mean over three rows.
    rows = [
        batch(s, rewards={"r": [1, 0, 0]}, advantage=[2, -s / 10, -1], n_tokens=[10, 12, 40])
        for s in STEPS
    ]
    logged = [-(2 - s / 10) / 3 for s in STEPS]
    config = {"loss_type": "grpo", "mask_truncated_completions": True}
    signals = {"loss": logged, "truncation_rate": [1 / 3] * len(STEPS)}
    found = measure(TOOL, make_run(rollouts=rows, signals=signals, config=config))
    assert (found["slope"], found["correlation"]) == (1, 1)


def test_finish_reasons_say_which_rows_were_cut(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # Two rows have 40 tokens; the one that ended there is trained.
    rows = [
        batch(
            s,
            rewards={"r": [1, 0, 0]},
            advantage=[2, -s / 10, -1],
            n_tokens=[40, 12, 40],
            finish=["stop", "stop", "length"],
        )
        for s in STEPS
    ]
    signals = {
        "loss": [-(2 - s / 10) / 3 for s in STEPS],
        "truncation_rate": [1 / 3] * len(STEPS),
    }
    config = {"loss_type": "grpo", "mask_truncated_completions": True}
    found = measure(TOOL, make_run(rollouts=rows, signals=signals, config=config))
    assert (found["slope"], found["correlation"]) == (1, 1)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"loss_type": "cispo"}, "not computed for the loss type cispo"),
        ({"loss_type": "vespo"}, "vespo"),
        ({"loss_type": "mine"}, "not computed for the loss type mine"),
        ({"loss_type": "dr_grpo"}, "max_completion_length"),
        ({"loss_type": "seq-mean-token-sum-norm"}, "loss_scale_factor"),
        ({"loss_type": "dapo", "top_entropy_quantile": 0.2}, "top_entropy_quantile"),
        ({"loss_type": "dapo", "use_adaptive_entropy": True}, "use_adaptive_entropy"),
    ],
)
def test_no_identity_is_claimed(
    make_run: MakeRun,
    batch: MakeBatch,
    missing: Callable[..., str],
    config: dict[str, object],
    said: str,
) -> None:
    signals = {"loss": [by_hand("dapo", s) for s in STEPS]}
    run = make_run(rollouts=rollouts(batch), signals=signals, config=config)
    assert said in missing(TOOL, run)


@pytest.mark.parametrize(
    ("framework", "kind"), [("trl", "dapo"), ("nemo-rl", "dapo"), ("slime", "grpo"), ("roll", None)]
)
def test_a_type_that_is_not_stated_is_the_frameworks(
    make_run: MakeRun,
    batch: MakeBatch,
    measure: Measure,
    missing: Callable[..., str],
    framework: str,
    kind: str | None,
) -> None:
    signals = {"loss": [by_hand(kind or "dapo", s) for s in STEPS]}
    run = make_run(
        rollouts=rollouts(batch), signals=signals, config={"beta": 0.0}, framework=framework
    )
    if kind is None:
        assert "no loss type" in missing(TOOL, run)
    else:
        assert measure(TOOL, run)["slope"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("corrected", [True, False])
def test_importance_weights_of_an_engine(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, corrected: bool
) -> None:
    """Their mean scales the loss where they are in it; where they are not, it says nothing."""
    scale = 0.8 if corrected else 1.0
    signals = {
        "loss": [scale * by_hand("dapo", s) for s in STEPS],
        "is_ratio_mean": [0.8] * len(STEPS),
    }
    config = {
        "loss_type": "dapo",
        "use_vllm": True,
        "vllm_importance_sampling_correction": corrected,
    }
    run = make_run(rollouts=rollouts(batch), signals=signals, config=config)
    assert measure(TOOL, run)["slope"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("version", "factor"),
    [("1.8.0", 0.5), ("1.9", 0.5), ("1.9.1", None), ("1.16.0", None), (None, None)],
)
def test_the_factor_that_old_versions_leave_out(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, version: str | None, factor: float | None
) -> None:
    """Two updates share a batch, and each loss is divided by the tokens of both."""
    rows = rollouts(batch)
    made = [replace(b, step=2 * b.step - 1) for b in rows]
    logged = [by_hand("dapo", s) / 2 for s in STEPS for _ in range(2)]
    config = {
        "loss_type": "dapo",
        "gradient_accumulation_steps": 4,
        "steps_per_generation": 8,
    }
    run = make_run(rollouts=made, signals={"loss": logged}, config=config, version=version)
    found = measure(TOOL, run)
    assert found["slope"] == pytest.approx(0.5, abs=1e-4)
    assert found["factor_of_version"] == factor
    assert found["factor_is_of_version"] == (factor is not None)
    sound = make_run(
        rollouts=made, signals={"loss": [2 * v for v in logged]}, config=config, version=version
    )
    assert not measure(TOOL, sound)["factor_is_of_version"]


NORM = "seq-mean-token-sum-norm"


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        # V1 pads to the longest row of the step, here 10 + s tokens.
        ({"config": {"trainer.use_v1": True}}, lambda s: 10 + s),
        ({"config": {"transfer_queue.enable": True}}, lambda s: 10 + s),
        ({"signals": {"training/num_turns/mean": [1.0] * 20}}, lambda s: 10 + s),
        # V0, the only one before 0.9, pads to the cap.
        ({"config": {"trainer.use_v1": False}}, lambda s: CAP),
        ({"version": "0.8.1"}, lambda s: CAP),
        # What is stated goes before both.
        ({"config": {"trainer.use_v1": True, "loss_scale_factor": 500}}, lambda s: 500),
    ],
)
def test_the_width_that_verl_divides_by(
    make_run: MakeRun,
    make_signal: Callable[..., Signal],
    batch: MakeBatch,
    measure: Measure,
    fields: dict[str, Any],
    width: Callable[[int], float],
) -> None:
    logged = [by_hand("seq-mean-token-sum", s) / width(s) for s in STEPS]
    unknown = {name: make_signal(name, v) for name, v in fields.get("signals", {}).items()}
    run = make_run(
        rollouts=rollouts(batch),
        config={"loss_type": NORM, "max_completion_length": CAP, **fields.get("config", {})},
        framework="verl",
        version=fields.get("version"),
        signals={"loss": logged},
    )
    run.signals = replace(run.signals, unknown=unknown)
    found = measure(TOOL, run)
    assert (found["slope"], found["correlation"]) == (pytest.approx(1, abs=1e-4), 1)


def test_the_longest_row_is_the_logged_one_where_tools_spoke_in_it(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """The response of verl holds tool tokens, which no count of trained tokens does."""
    longest = [30.0 + s for s in STEPS]
    logged = [by_hand("seq-mean-token-sum", s) / n for s, n in zip(STEPS, longest, strict=True)]
    run = make_run(
        rollouts=rollouts(batch),
        signals={"loss": logged, "completion_length_max": longest},
        config={"loss_type": NORM, "trainer.use_v1": True},
        framework="verl",
    )
    assert measure(TOOL, run)["slope"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("version", [None, "0.9.1"])
def test_a_width_that_is_not_known_is_refused(
    make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str], version: str | None
) -> None:
    """From 0.9 on either trainer may have written the run."""
    run = make_run(
        rollouts=rollouts(batch),
        signals={"loss": [by_hand("seq-mean-token-sum", s) / CAP for s in STEPS]},
        config={"loss_type": NORM, "max_completion_length": CAP},
        framework="verl",
        version=version,
    )
    assert "pads to the cap (V0) or to the longest row (V1)" in missing(TOOL, run)


@pytest.mark.parametrize("kind", ["dapo", "cispo", "vespo", "grpo", "dr_grpo", "bnpo"])
def test_types_whose_factor_old_versions_leave_out(make_run: MakeRun, kind: str) -> None:
    config = {"loss_type": kind, "gradient_accumulation_steps": 4, "steps_per_generation": 8}
    old, new = (left_out_by_version(make_run(config=config, version=v)) for v in ("1.9", "1.9.1"))
    assert old == (0.5 if kind in ("dapo", "cispo", "vespo") else None)
    assert new is None
