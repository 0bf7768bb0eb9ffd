"""What is recorded of verl's own V0 loop, and that nothing changes by it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl")
pytest.importorskip("torchdata")
pytest.importorskip("cachetools")
pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from firstbad.agent.investigate import Finished, investigate
from firstbad.tools.readers import open_run

# The libraries of training warn of their own doings.
pytestmark = pytest.mark.filterwarnings("default")
MakeTrainer = Callable[..., Any]


def rows_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTBAD_RECORD_OPTIONS", "baseline_every=1")


def test_training_is_the_same_with_and_without(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from firstbad_recorder.verl import driver

    monkeypatch.setenv("FIRSTBAD_RECORD", str(tmp_path / "record"))
    tables = []
    for recorded in (True, False):
        if not recorded:
            monkeypatch.setattr(driver, "of", lambda trainer: None)
            monkeypatch.delenv("FIRSTBAD_RECORD")
        trainer = make_trainer(n_steps=3)
        trainer.fit()
        tables.append(trainer.actor_rollout_wg.policy.table.detach().clone())
    assert torch.equal(tables[0], tables[1])
    assert len(rows_in(tmp_path / "record" / "metrics.jsonl")) == 6
    assert not (tmp_path / "out" / "record").exists()


def test_rows_and_arrays_are_those_of_the_batch(
    make_trainer: MakeTrainer,
    tensors_in: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every_step(monkeypatch)
    trainer = make_trainer(n_steps=2, tools=True)
    seen: list[Any] = []
    entropies: list[Any] = []
    old = trainer._compute_old_log_prob

    def scored(batch: Any) -> Any:
        found = old(batch)
        entropies.append(found[0].batch["entropys"].clone())
        return found

    trainer._compute_old_log_prob = scored
    original = type(trainer)._update_actor

    def watched(batch: Any) -> Any:
        seen.append((batch.batch.clone(), dict(batch.non_tensor_batch)))
        return original(trainer, batch)

    trainer._update_actor = watched
    trainer.fit()
    record = tmp_path / "out" / "record"
    said = json.loads((record / "run.json").read_text())
    assert said["dropped_by_reason"] == {}
    assert said["config"]["actor_rollout_ref"]["rollout"]["n"] == 8
    assert "xyz" not in json.dumps(said)
    assert (said["config"]["eos_token_id"], said["config"]["pad_token_id"]) == (1, 0)
    assert said["versions"]["verl"]
    run = open_run(f"rec:{record}")
    assert run.captures.steps.tolist() == [1, 2]
    for step, (batch, others), entropy in zip((1, 2), seen, entropies, strict=True):
        raw = tensors_in(record / "steps" / f"{step:08d}" / "tokens.safetensors")
        lengths = np.diff(raw["offsets"])
        assert len(set(lengths)) == 1
        width = int(lengths[0])
        used = int(batch["attention_mask"][:, 4:].sum(1).max())
        first = int(batch["attention_mask"].any(0).nonzero()[0])
        wide = 4 - first
        assert width == wide + used, "columns that hold padding in all rows are left out"
        found = {
            name: values.reshape(32, width) for name, values in raw.items() if name != "offsets"
        }
        mask = batch["response_mask"][:, :used].numpy()
        attended = batch["attention_mask"].numpy()[:, first : 4 + used]
        assert np.array_equal(found["token_id"], batch["input_ids"].numpy()[:, first : 4 + used])
        assert np.array_equal(found["attention_mask"], attended)
        assert np.array_equal(found["position"], batch["position_ids"].numpy()[:, first : 4 + used])
        assert np.array_equal(found["loss_mask"][:, wide:], mask)
        assert found["loss_mask"][:, :wide].sum() == 0
        made = np.where(attended[:, wide:] == 0, 0, np.where(mask == 1, 3, 4))
        assert np.array_equal(found["source"][:, wide:], made)
        assert np.array_equal(found["source"][:, :wide], 2 * attended[:, :wide])
        assert (made == 4).any()
        arrays = {
            "logp_old": batch["old_log_probs"], "logp_engine": batch["rollout_log_probs"],
            "entropy": entropy,
        }  # fmt: skip
        for name, values in arrays.items():
            own = found[name][:, wide:]
            assert np.array_equal(np.isfinite(own), made == 3), name
            assert np.array_equal(own[made == 3], values[:, :used].numpy()[made == 3]), name
        assert np.array_equal(found["advantage"][:, wide:], batch["advantages"][:, :used].numpy())
        rows = rows_in(record / "steps" / f"{step:08d}" / "rollouts.jsonl")
        assert [row["group"] for row in rows] == [str(uid) for uid in others["uid"]]
        assert [row["sample"] for row in rows] == [f"{step}-{i}" for i in range(32)]
        assert [row["gold"] for row in rows] == [
            one["ground_truth"] for one in others["reward_model"]
        ]
        assert all(row["prompt"].endswith(f"copy {row['gold']} :") for row in rows)
        assert [row["reward"] for row in rows] == batch["token_level_rewards"].sum(1).tolist()
        assert all(row["rewards"] == {"acc": row["reward"]} for row in rows)
        assert [row["n_tokens"] for row in rows] == batch["attention_mask"][:, 4:].sum(1).tolist()
        last = [
            ids[n - 1]
            for ids, n in zip(batch["responses"], (r["n_tokens"] for r in rows), strict=True)
        ]
        assert [row["finish"] for row in rows] == ["stop" if end == 1 else "length" for end in last]
        flat = [
            (a[m == 1]).mean() for a, m in zip(batch["advantages"][:, :used], mask, strict=True)
        ]
        assert np.allclose([row["advantage"] for row in rows], flat, atol=1e-6)
        assert {row["policy_version"] for row in rows} == {step - 1}
        about = run.flight.at(step)
        assert (about.whole_groups, about.in_order, about.filters) == (True, True, "none")
        assert about.policy_version == step - 1


def test_numbers_are_verls_under_its_names(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_trainer(n_steps=3).fit()
    logged = rows_in(tmp_path / "p" / "e.jsonl")
    own = rows_in(tmp_path / "out" / "record" / "metrics.jsonl")
    assert [line["step"] for line in own] == [1, 1, 2, 2, 3, 3]
    for theirs, ours in zip(logged, own[1::2], strict=True):
        found = {k: v for k, v in ours.items() if k not in ("step", "time")}
        assert found == theirs["data"]
    for line in own[::2]:
        assert line.keys() - {"step", "time"} == {
            "surprise_mean", "logprob_diff_mean", "truncation_rate"
        }  # fmt: skip
        assert line["logprob_diff_mean"] < 1e-6
        assert abs(line["surprise_mean"]) < 0.5
    synced = rows_in(tmp_path / "out" / "record" / "syncs.jsonl")
    assert [(line["step"], line["version"]) for line in synced] == [(i, i) for i in range(4)]


def test_a_worker_writes_its_micro_batches_beside(
    make_trainer: MakeTrainer,
    tensors_in: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every_step(monkeypatch)
    record = tmp_path / "record"
    monkeypatch.setenv("FIRSTBAD_RECORD", str(record))
    trainer = make_trainer("actor_rollout_ref.actor.ppo_mini_batch_size=2", n_steps=2)
    trainer.fit()
    seen = trainer.actor_rollout_wg.engine.seen
    for step in (1, 2):
        folder = record / "ranks" / "0001" / "steps" / f"{step:08d}"
        ledger = rows_in(folder / "microbatches.jsonl")
        assert [(row["update"], row["microbatch"]) for row in ledger] == [
            (0, 0), (0, 1), (1, 0), (1, 1)
        ]  # fmt: skip
        for row, own in zip(ledger, seen[4 * (step - 1) : 4 * step], strict=True):
            assert row["loss"] == own["loss"]
            assert row["n_tokens"] == own["tokens"]
        for at in (0, 2):
            assert {row["denominator"] for row in ledger[at : at + 2]} == {
                sum(row["n_tokens"] for row in ledger[at : at + 2])
            }
        # the first update is made on the weights that old log-probs are from
        assert all(abs(row["ratio_max"] - 1) < 1e-5 for row in ledger[:2])
        assert any(abs(row["ratio_max"] - 1) > 1e-3 for row in ledger[2:])
        found = tensors_in(folder / "tokens.safetensors")
        assert len(found["offsets"]) == 17
        made = found["source"] == 3
        assert np.array_equal(np.isfinite(found["logp_new"]), made)
        assert np.abs(found["logp_new"][made] - found["logp_old"][made]).max() < 1e-6
        assert (found["entropy"][made] > 0).all()
        norms = [json.loads((one / "numerics.json").read_text())["norms"] for one in (
            folder, record / "steps" / f"{step:08d}"
        )]  # fmt: skip
        assert norms[0] == norms[1], "the driver gets what the worker measures"
        assert len(norms[0]) == 2
    said = json.loads((record / "ranks" / "0001" / "run.json").read_text())
    assert said["dropped_by_reason"] == {}
    run = open_run(f"rec:{record}")
    read = run.flight.at(2)
    assert len(read.microbatches) == 4, "the worker's"
    assert len(run.rollouts.batch(2)) == 32, "the driver's"
    assert read.whole_groups


def test_verls_marks_stay_on_the_workers_method() -> None:
    from verl.single_controller.base.decorator import MAGIC_ATTR
    from verl.workers import engine_workers
    from verl.workers.utils import losses

    method = engine_workers.ActorRolloutRefWorker.update_weights
    assert hasattr(method, "firstbad_wrapped")
    assert hasattr(method, MAGIC_ATTR)
    assert inspect.iscoroutinefunction(method)
    assert engine_workers.ppo_loss is losses.ppo_loss
    assert hasattr(losses.ppo_loss, "firstbad_wrapped")


def test_an_exception_keeps_the_step_it_ended(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    calls = []

    def fault() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        make_trainer(n_steps=4, fault=fault).fit()
    record = tmp_path / "out" / "record"
    kept = sorted(int(step.name) for step in (record / "steps").iterdir())
    assert kept == [1, 2, 3]
    about = json.loads((record / "steps" / "00000003" / "step.json").read_text())
    assert about["why"] == "held when RuntimeError ended the training"
    assert not (record / "steps" / "00000003" / "numerics.json").exists()
    events = rows_in(record / "events.jsonl")
    assert events[-1]["kind"] == "error"
    assert "out of memory" in events[-1]["text"]


def test_what_breaks_in_recording_stays_there(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firstbad_recorder.verl import where, worker
    from firstbad_recorder.verl.driver import Driver

    def broken(*args: Any, **more: Any) -> Any:
        raise RuntimeError("recording is broken")

    for name in ("delivered", "scored", "taken", "logged", "hold"):
        monkeypatch.setattr(Driver, name, broken)
    for part in ("_taken", "_finished", "_held"):
        monkeypatch.setattr(worker, part, broken)
    monkeypatch.setattr(where, "settings_of", broken)
    monkeypatch.setenv("FIRSTBAD_RECORD", str(tmp_path / "record"))
    trainer = make_trainer(n_steps=2)
    trainer.fit()
    assert trainer.global_steps == 3
    said = json.loads((tmp_path / "record" / "run.json").read_text())
    assert any("recording is broken" in reason for reason in said["dropped_by_reason"])


def test_an_unknown_folder_is_said_once_and_nothing_recorded(
    make_trainer: MakeTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_trainer("trainer.default_local_dir=null", n_steps=2).fit()
    said = [r.getMessage() for r in caplog.records if r.name == "firstbad_recorder"]
    assert len(said) == 2, said
    assert any("no FIRSTBAD_RECORD, and no trainer.default_local_dir" in text for text in said)
    assert any("micro-batches not recorded" in text for text in said)
    assert list(tmp_path.rglob("run.json")) == []


def test_a_healthy_run_passes_the_layers_it_has_data_for(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_step(monkeypatch)
    make_trainer(n_steps=16).fit()
    done = investigate(f"rec:{tmp_path}/out/record", "", out=tmp_path / "incidents")
    assert isinstance(done, Finished)
    assert [f.cause for f in done.verdict.findings] == [], done.verdict.headline
    outcomes = {layer.id: layer.outcome for layer in done.verdict.layers}
    for layer in ("records", "probability", "masks", "numerics", "reward"):
        assert outcomes[layer] == "pass", outcomes


def test_engine_log_probs_at_another_temperature_are_found(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_step(monkeypatch)
    make_trainer(n_steps=14, temperature=0.7).fit()
    done = investigate(f"rec:{tmp_path}/out/record", "", out=tmp_path / "incidents")
    assert isinstance(done, Finished)
    leading = done.verdict.leading
    assert leading is not None
    assert (leading.layer, leading.cause) == ("probability", "prob.processed_logprobs")


def test_large_steps_are_recorded_in_whole_groups() -> None:
    from firstbad_recorder.verl.batch import chosen

    groups = ["a", "b", "a", "c", "b", "c"]
    assert chosen(groups, [10] * 6, 60) == list(range(6))
    assert chosen(groups, [10] * 6, 45) == [0, 1, 2, 4]
    assert chosen(groups, [10] * 6, 5) == [0, 2], "at least one"
    assert chosen(None, [10] * 6, 25) == [0, 1]


def test_what_a_correction_rejects_is_no_tools() -> None:
    import torch

    from firstbad_recorder.verl.batch import padded, tokens_of

    tensors = {
        "prompts": torch.tensor([[5, 6]]), "responses": torch.tensor([[7, 8, 9, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0]]),
        "response_mask": torch.tensor([[1, 0, 0, 0]]),
        "rollout_log_probs": torch.tensor([[-0.5, -2.0, 0.0, 0.0]]),
    }  # fmt: skip
    batch = padded(tensors, {}, None, ())
    assert tokens_of(batch)["source"].tolist() == [2, 2, 3, 4, 4]
    assert tokens_of(batch, tools_by_engine=True)["source"].tolist() == [2, 2, 3, 3, 4]
