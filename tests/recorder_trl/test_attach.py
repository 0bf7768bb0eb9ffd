"""What `attach` records of a real TRL run: what the trainer computed, and nothing is changed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer
from firstbad.tools.beside import rows_of_capture
from firstbad.tools.readers import open_run
from firstbad_recorder.trl import attach, preflight
from recorder_trl.lines import rows_in

# The libraries of training warn of their own doings.
pytestmark = pytest.mark.filterwarnings("default")
MakeTrainer = Callable[..., Any]


def test_training_is_the_same_with_and_without(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    import torch

    weights = []
    for recorded in (False, True):
        trainer = make_trainer()
        if recorded:
            attach(trainer, tmp_path / "record", baseline_every=2)
        torch.manual_seed(3)
        trainer.train()
        weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters()})
    assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0])
    assert (tmp_path / "record" / "metrics.jsonl").exists()


def test_tokens_ledger_and_numbers_are_those_of_the_trainer(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer()
    seen: list[dict[str, Any]] = []
    losses: list[float] = []
    original = trainer._compute_loss

    def watched(model: Any, inputs: dict[str, Any]) -> Any:
        loss = original(model, inputs)
        seen.append({k: v.clone() for k, v in inputs.items() if hasattr(v, "clone")})
        losses.append(float(loss.detach()))
        return loss

    trainer._compute_loss = watched
    recorder = attach(trainer, tmp_path / "record", baseline_every=1)
    trainer.train()
    said = json.loads((tmp_path / "record" / "run.json").read_text())
    assert said["dropped_by_reason"] == {}
    assert recorder.dropped == 0
    run = open_run(f"rec:{tmp_path / 'record'}")
    assert run.captures.steps.tolist() == [1, 2, 3, 4, 5, 6]
    logged = rows_in(tmp_path / "record" / "metrics.jsonl")
    own = {row["step"]: row for row in logged if "entropy" in row}
    for step in range(1, 7):
        parts = seen[2 * (step - 1) : 2 * step]
        capture, batch = run.captures.at(step), run.rollouts.batch(step)
        n_trained = sum(int(p["completion_mask"].sum()) for p in parts)
        assert int(capture.arrays["loss_mask"].sum()) == n_trained
        assert int(capture.arrays["prompt_loss_mask"].sum()) == 0
        assert batch.n_tokens is not None
        assert int(batch.n_tokens.sum()) == n_trained
        # advantages by row, in the order of generation
        expected = sorted(float(a) for p in parts for a in p["advantages"])
        assert np.allclose(sorted(capture.arrays["advantage"]), expected, atol=1e-6)
        assert batch.advantage is not None
        assert np.allclose(sorted(batch.advantage), expected, atol=1e-6)
        flight = run.flight.at(step)
        assert flight.whole_groups
        assert flight.first_pass
        # loss_type dapo: every token weighs one over all tokens of the step
        for part, loss in zip(flight.microbatches, losses[2 * (step - 1) :], strict=False):
            assert part.denominator == pytest.approx(n_trained, rel=1e-4)
            assert part.loss == pytest.approx(loss, abs=1e-6)
        assert own[step]["loss"] == pytest.approx(sum(losses[2 * (step - 1) : 2 * step]), abs=1e-6)
        again, old = (capture.numbers(name) for name in ("logp_recheck", "logp_old"))
        assert again is not None
        assert old is not None
        assert np.nanmax(np.abs(again - old)) < 1e-5


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_clip_fraction_counts_what_is_clipped(
    make_trainer: MakeTrainer, tmp_path: Path, level: str
) -> None:
    tight = {"epsilon": 1e-3, "epsilon_high": 1e-3, "learning_rate": 3e-3}
    trainer = make_trainer(importance_sampling_level=level, num_iterations=2, max_steps=4, **tight)
    attach(trainer, tmp_path / "record")
    trainer.train()
    own = [r for r in rows_in(tmp_path / "record/metrics.jsonl") if "clip_frac_total" in r]
    measured = [row["clip_frac_total"] for row in own]
    logged = trainer.state.log_history
    theirs = [row["clip_ratio/region_mean"] for row in logged if "clip_ratio/region_mean" in row]
    # TRL logs the mean over micro-batches, which are of unequal length
    assert measured == pytest.approx(theirs, abs=1e-6 if level == "sequence" else 0.03)
    assert max(measured) > 0.1


@pytest.mark.parametrize(
    ("config", "counts", "divided"),
    [
        ({"loss_type": "grpo"}, "rows", 16.0),
        ({"loss_type": "dr_grpo"}, "tokens", 16.0 * 12),
        ({"loss_type": "dapo", "beta": 0.0}, "tokens", None),
        ({"loss_type": "dapo", "num_iterations": 2}, "tokens", None),
    ],
)
def test_the_denominator_is_measured(
    make_trainer: MakeTrainer,
    tmp_path: Path,
    config: dict[str, Any],
    counts: str,
    divided: float | None,
) -> None:
    trainer = make_trainer(**config, max_steps=4)
    attach(trainer, tmp_path / "record", baseline_every=1)
    trainer.train()
    for step in (1, 2, 4):
        folder = tmp_path / "record" / "steps" / f"{step:08d}"
        ledger = rows_in(folder / "microbatches.jsonl")
        expected = divided or float(sum(row["n_tokens"] for row in ledger))
        for row in ledger:
            assert row["denominator_counts"] == counts
            assert row["denominator"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("parts_of_loss", [(), ("generated", "begin_micro", "passed", "end_micro")])
def test_what_breaks_in_recording_stays_there(
    make_trainer: MakeTrainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts_of_loss: tuple[str, ...],
) -> None:
    from firstbad_recorder.trl.gradients import Gradients, Heard
    from firstbad_recorder.trl.micro import Micro, Pass
    from firstbad_recorder.trl.recording import Recording

    def broken(*args: Any, **more: Any) -> Any:
        raise RuntimeError("recording is broken")

    parts = {
        Recording: ("begin", "compare_engine", "clipped", "logged", "end_step", *parts_of_loss),
        Gradients: ("before_update", "after_update"),
        Heard: ("add",),
        Micro: ("take_factor",),
        Pass: ("take",),
    }
    for owner, names in parts.items():
        for name in names:
            monkeypatch.setattr(owner, name, broken)
    trainer = make_trainer(max_steps=2)
    recorder = attach(trainer, tmp_path / "record")
    trainer.train()
    assert trainer.state.global_step == 2
    assert recorder.dropped > 0
    said = json.loads((tmp_path / "record" / "run.json").read_text())
    assert any("recording is broken" in reason for reason in said["dropped_by_reason"])


def test_a_further_training_goes_on_with_the_record(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(max_steps=2)
    recorder = attach(trainer, tmp_path / "record")
    trainer.train()
    assert recorder.closed
    trainer.args.learning_rate = 3e-4
    trainer.train()
    assert recorder.closed
    assert recorder.dropped == 0
    steps = [r["step"] for r in rows_in(tmp_path / "record/metrics.jsonl") if "loss" in r]
    assert steps == [1, 2, 1, 2]
    kinds = [(e["kind"], e["step"]) for e in rows_in(tmp_path / "record/events.jsonl")]
    assert kinds[0] == ("resume", 1)
    about = json.loads((tmp_path / "record/run.json").read_text())
    assert about["finished"] is not None
    assert [r["config"]["learning_rate"] for r in about["restarts"]] == [3e-4]

    before = (tmp_path / "record/metrics.jsonl").read_bytes()
    attach(trainer, tmp_path / "other")  # the methods are wrapped once
    trainer.train()
    steps = [r["step"] for r in rows_in(tmp_path / "other/metrics.jsonl") if "loss" in r]
    assert steps == [1, 2]
    assert (tmp_path / "record/metrics.jsonl").read_bytes() == before


def test_an_exception_keeps_the_last_steps(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    calls = []

    def failing(completions: list[Any], **_: Any) -> list[float]:
        calls.append(1)
        if len(calls) > 3:
            raise TimeoutError("verifier did not answer")
        return [float(i % 2) for i in range(len(completions))]

    failing.__name__ = "verifier"
    trainer = make_trainer(rewards=[failing])
    attach(trainer, tmp_path / "record")
    with pytest.raises(TimeoutError):
        trainer.train()
    events = rows_in(tmp_path / "record" / "events.jsonl")
    assert (events[-1]["kind"], events[-1]["step"], events[-1]["ends"]) == ("error", 4, True)
    assert events[-1]["text"] == (
        "TimeoutError: verifier did not answer (in reward function verifier)"
    )
    assert sorted(p.name for p in (tmp_path / "record" / "steps").iterdir()) == [
        "00000001",
        "00000002",
        "00000003",
    ]


def test_an_exception_between_steps_stands_after_the_last_one(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(save_strategy="steps", save_steps=2)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    trainer._save_checkpoint = full
    attach(trainer, tmp_path / "record")
    with pytest.raises(OSError, match="No space"):
        trainer.train()
    last = rows_in(tmp_path / "record" / "events.jsonl")[-1]
    assert (last["step"], last["text"]) == (2, "OSError: No space left on device")


def test_no_secret_and_what_the_run_depends_on(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "hidden-one")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    trainer = make_trainer(hub_token="hidden-two", max_steps=1)
    attach(trainer, tmp_path / "record")
    trainer.train()
    text = (tmp_path / "record" / "run.json").read_text()
    assert "hidden" not in text
    said = json.loads(text)
    assert said["environment"]["NCCL_DEBUG"] == "WARN"
    assert {"torch", "trl", "transformers"} <= said["versions"].keys()
    assert said["config"]["num_generations"] == 4
    assert said["device"] == "cpu"


def test_warnings_of_a_verifier_are_events(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    log = logging.getLogger("verifier.client")

    def verifier(completions: list[Any], trainer_state: Any, **_: Any) -> list[float]:
        if trainer_state.global_step == 1:
            log.warning("deadline exceeded (%d items), fallback score 0.0", len(completions))
        log.info("scored")
        return [float(i % 2) for i in range(len(completions))]

    trainer = make_trainer(rewards=[verifier], max_steps=3)
    attach(trainer, tmp_path / "record")
    trainer.train()
    events = rows_in(tmp_path / "record" / "events.jsonl")
    assert [(e["kind"], e["step"], e["text"]) for e in events] == [
        ("warning", 2, "scoring with verifier: deadline exceeded (16 items), fallback score 0.0")
    ]


def test_a_preflight_passes_leaves_all_as_it_was_and_its_certificate_fits_the_record(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    import torch

    weights = []
    for checked in (False, True):
        trainer = make_trainer(max_steps=3)
        torch.manual_seed(3)
        if checked:
            found = preflight(trainer, tmp_path / "record")
            assert found.failed == []
            assert {c.name for c in found.checks if c.outcome == "pass"} >= {
                "loss_numerics",
                "loss_definition",
                "mask_construction",
                "accumulation",
                "trainer_repeatability",
            }
            assert found.loss is not None
            assert "dapo" in found.loss["loss_types"]
            attach(trainer, tmp_path / "record")
        trainer.train()
        weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters()})
    assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0])
    certificate = open_run(f"rec:{tmp_path / 'record'}").flight.certificate
    assert certificate is not None
    assert certificate.differs == ()
    assert certificate.outcome("accumulation") is True


def test_parts_of_a_generation_batch_are_kept_with_all_of_it(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(steps_per_generation=4, gradient_accumulation_steps=2, max_steps=4)
    attach(trainer, tmp_path / "record", baseline_every=1)
    trainer.train()
    run = open_run(f"rec:{tmp_path / 'record'}")
    for step in (1, 2, 3, 4):
        trained = rows_of_capture(run, step)
        assert trained is not None
        assert len(trained) == 16
        batch = run.rollouts.batch(step)
        assert len(batch) == 32
        assert set(np.bincount(batch.group).tolist()) == {4}
        assert batch.sample is not None
        assert trained.sample is not None
        assert set(trained.sample) < set(batch.sample)
        assert batch.repeats_step == (None if step % 2 else step - 1)
        assert run.flight.at(step).whole_groups
    rewards = run.signals.get("reward_mean")
    assert rewards is not None
    assert rewards.values[0] == rewards.values[1]


class TwiceAccumulated(LoggedGRPOTrainer):
    """The loss is not divided by the accumulation steps."""

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        return super()._loss_of(model, inputs) * self.current_gradient_accumulation_steps


def test_a_preflight_names_the_factor_of_the_accumulation(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    found = preflight(make_trainer(TwiceAccumulated), tmp_path / "record")
    assert found.failed == ["accumulation"]
    assert "norm ratio 2" in found.report()


def test_a_threshold_of_each_micro_batch_is_no_fault_of_the_accumulation(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(loss_type="dr_grpo", top_entropy_quantile=0.5)
    found = preflight(trainer, tmp_path / "record")
    assert found.failed == []
    assert "measured without top_entropy_quantile" in found.report()
    assert trainer.top_entropy_quantile == 0.5


class ClampedAfterExp(LoggedGRPOTrainer):
    """A term exp of a whole row in half precision, which is limited after the exp."""

    live: Any = None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.live = scored[0] if kwargs.get("compute_entropy") else self.live
        return scored

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        surprise = -(self.live_after(model, inputs) * inputs["completion_mask"]).sum(1)
        return self.loss + surprise.half().exp().clamp(max=1.0).float().mean()

    def live_after(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.loss = super()._loss_of(model, inputs)
        return self.live


def test_a_gradient_that_is_not_finite_names_the_operation_and_its_line(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(ClampedAfterExp, max_steps=1)
    attach(trainer, tmp_path / "record")
    trainer.train()
    told = [e["text"] for e in rows_in(tmp_path / "record" / "events.jsonl")]
    assert any("`exp` in the forward pass" in t and "test_attach.py:" in t for t in told), told
    run = open_run(f"rec:{tmp_path / 'record'}")
    kept, capture = run.flight.at(1), run.captures.at(1)
    # NaN arrives everywhere: what is trained is then as stated, what divides is not known
    loss, made = capture.mask("loss_mask"), capture.mask("completion_mask")
    assert loss is not None
    assert made is not None
    assert not (loss & ~made).any()
    assert [part.denominator for part in kept.microbatches] == [None, None]
    assert [t.dtype for t in kept.trail if t.place == "exp" and t.n_nonfinite] == ["float16"]
    assert kept.first_nonfinite.operation == "exp"
    assert "test_attach.py:" in (kept.first_nonfinite.where or "")


def test_a_captured_step_is_explained_by_the_checkpoint_before_it(
    make_trainer: MakeTrainer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jinja2")
    from transformers.utils import logging

    from firstbad.agent.replay import nothing_fits, replay, report

    trainer = make_trainer(
        max_steps=4, save_strategy="steps", save_steps=2, learning_rate=1e-2, warmup_steps=0
    )
    attach(trainer, tmp_path / "record", baseline_every=1)
    trainer.train()
    step = str(tmp_path / "record" / "steps" / "00000003")
    logging.enable_progress_bar()
    capfd.readouterr()
    own, later = (
        replay(step, str(tmp_path / "out" / f"checkpoint-{n}"), step=None, rows=4) for n in (2, 4)
    )
    assert {"logp_new", "logp_old"} <= set(own["fits"])
    assert not nothing_fits(own)
    assert own["finite"]
    assert own["weights_of_step"] == 2
    assert nothing_fits(later)
    assert "give checkpoint 2; it belongs to step 5" in " ".join(report(later))
    assert "Loading" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("config", "passes"),
    [
        ({}, [True, True, True, True]),
        ({"steps_per_generation": 1}, [True, True, True, True]),  # two generations a step
        ({"steps_per_generation": 4}, [True, True, True, True]),  # two steps a generation
        ({"num_iterations": 2}, [True, False, True, False]),
    ],
)
def test_rows_belong_to_their_generation(
    make_trainer: MakeTrainer,
    tmp_path: Path,
    config: dict[str, Any],
    passes: list[bool],
) -> None:
    trainer = make_trainer(max_steps=4, **config)
    recorder = attach(trainer, tmp_path / "record", baseline_every=1)
    trainer.train()
    assert recorder.dropped == 0
    run = open_run(f"rec:{tmp_path / 'record'}")
    assert [run.flight.at(step).first_pass for step in (1, 2, 3, 4)] == passes
    for step in (1, 2, 3, 4):
        rows = rows_in(tmp_path / "record" / "steps" / f"{step:08d}" / "rollouts.jsonl")
        assert len({row["sample"] for row in rows}) == len(rows) == 16
        kept, capture = run.flight.at(step), run.captures.at(step)
        assert kept.whole_groups
        assert sorted(kept.stages.trained) == sorted(row["sample"] for row in rows)
        # the tokens of a row are those of its text
        made = [int(n) for n in np.asarray(capture.arrays["completion_mask"]).sum(axis=1)]
        assert made == [row["n_tokens"] for row in rows]
        assert np.allclose(capture.arrays["advantage"], [row["advantage"] for row in rows])


def test_rows_without_an_advantage_keep_their_mask_under_a_kl_term(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    def equal(completions: list[Any], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    # The policy is the reference at step 1: no token of any row has a gradient, or one by rounding.
    trainer = make_trainer(rewards=[equal], beta=0.5, max_steps=3, learning_rate=1e-2)
    attach(trainer, tmp_path / "record", baseline_every=1)
    trainer.train()
    run = open_run(f"rec:{tmp_path / 'record'}")
    for step in (1, 2, 3):
        capture = run.captures.at(step)
        trained, completion = capture.mask("loss_mask"), capture.mask("completion_mask")
        assert trained is not None
        assert completion is not None
        assert np.array_equal(trained, completion)


def test_a_preflight_beside_an_attached_recorder_leaves_the_record_alone(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(max_steps=2)
    recorder = attach(trainer, tmp_path / "record", baseline_every=1)
    assert attach(trainer, tmp_path / "record") is recorder
    assert preflight(trainer, tmp_path / "record").failed == []
    trainer.train()
    assert recorder.dropped == 0
    ledger = rows_in(tmp_path / "record" / "steps" / "00000001" / "microbatches.jsonl")
    assert [row["microbatch"] for row in ledger] == [0, 1]
    assert len(rows_in(tmp_path / "record" / "metrics.jsonl")) <= 2 * 2 + 1
