"""Which evidence is there, so that nothing is asked for that a run has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firstbad.tools.run import RolloutBatch, Run

TOOL = "take_stock"

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def test_a_whole_run_lacks_nothing(simulate: MakeRun, measure: Measure) -> None:
    settings = {"beta": 0.04, "gradient_accumulation_steps": 2, "use_vllm": False}
    found = measure(TOOL, simulate(1, steps=15, config=settings))
    assert (found["loss_steps"], found["rollout_steps"], found["advantage_steps"]) == (15, 15, 15)
    assert found["settings"]
    assert found["updates_known"]
    assert found["loss_settings"]
    assert found["engine_settled"]


def test_steps_that_lack_something_are_counted(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """Metrics of steps 1 to 5, the rate of 4 of them, rollouts of 2: the run has 5 steps."""
    rows = [batch(step, rewards={"score": [1, 0]}) for step in (2, 5)]
    signals = {"loss": [0.1] * 5, "learning_rate": [1e-5] * 4, "ratio_max": [1.0] * 5}
    found = measure(TOOL, make_run(signals=signals, rollouts=rows))
    told = {name: found[name] for name in found if name.endswith("_lacking")}
    assert found["run_steps"] == 5
    assert told == {
        "loss_lacking": 0,
        "rates_lacking": 1,
        "rollouts_lacking": 3,
        "advantages_lacking": 5,
        **dict.fromkeys((f"{n}_lacking" for n in ("dumps", "norms", "entropies", "ratios")), 5),
    }


def test_a_logged_kl_needs_its_weight(make_run: MakeRun, measure: Measure) -> None:
    trainer = {"num_generations": 4}
    assert measure(TOOL, make_run(config=trainer))["loss_settings"], "no KL, so nothing to weigh"
    with_kl = {"kl_ref": [0.01, 0.02]}
    assert measure(TOOL, make_run(signals=with_kl, config={"beta": 0.0}))["loss_settings"]
    found = measure(TOOL, make_run(signals=with_kl, config=trainer))
    assert found["settings"]
    assert not found["loss_settings"], "KL is logged, and its weight is not stated"
    assert not found["updates_known"]


def test_an_averaged_loss_is_no_loss_of_a_step(make_run: MakeRun, measure: Measure) -> None:
    run = make_run(signals={"loss": [0.1, 0.2]}, config={"logging_steps": 10})
    assert measure(TOOL, run)["loss_steps"] == 0
    assert measure(TOOL, make_run(signals={"loss": [0.1, 0.2]}))["loss_steps"] == 2


def test_an_engine_is_settled_by_its_absence_or_a_comparison(
    make_run: MakeRun, measure: Measure
) -> None:
    def settled(framework: str, signals: dict[str, Any], **config: Any) -> bool:
        run = make_run(framework=framework, signals=signals, config=config)
        return bool(measure(TOOL, run)["engine_settled"])

    assert settled("trl", {}, use_vllm=False)
    assert settled("trl", {}), "TRL samples with the trainer's own model unless told otherwise"
    assert not settled("trl", {}, use_vllm=True)
    assert settled("trl", {"logprob_diff_mean": [0.01]}, use_vllm=True)
    assert not settled("verl", {})
    assert settled("verl", {"engine_kl": [0.001]})


def test_rollouts_beyond_the_metrics_and_texts_that_are_gone(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = [
        batch(s, rewards={"correct": [1, 0]}, completions=["", "" if s > 3 else "a b"])
        for s in range(1, 7)
    ]
    signals = {"completion_length_mean": [12.0] * 4, "loss": [0.1] * 4}
    found = measure("take_stock", make_run(rollouts=rows, signals=signals))
    assert found["beyond_metrics"] == 2
    assert found["empty_texts"] == 0, "the log says nothing of the last step"
    found = measure("take_stock", make_run(rollouts=rows[:4], signals=signals))
    assert (found["beyond_metrics"], found["empty_texts"]) == (0, 1)
    found = measure("take_stock", make_run(rollouts=rows[:3], signals=signals))
    assert found["empty_texts"] == 0.5


def test_a_judge_of_the_user_stands_for_right_answers(
    make_run: MakeRun, batch: MakeBatch, judged: MakeRun, measure: Measure
) -> None:
    run = make_run(rollouts=[batch(s, rewards={"correct": [1, 0]}) for s in (1, 2)])
    found = measure(TOOL, run)
    assert (found["gold"], found["judged"]) == (False, False)
    found = measure(TOOL, judged(run, lambda b: [1.0, 0.0]))
    assert (found["gold"], found["judged"]) == (False, True)
