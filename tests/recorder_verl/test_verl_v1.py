"""V1: the real `PPOTrainer._update_actor` and batch keys, with a queue that is a dictionary."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl")
pytest.importorskip("torchdata")
pytest.importorskip("cachetools")
pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")
pytest.importorskip("transfer_queue")

from firstbad.tools.readers import open_run

pytestmark = pytest.mark.filterwarnings("default")


class Queue:
    """What `transfer_queue.kv_batch_get` gives: fields that it does not have are left out."""

    def __init__(self, fields: dict[str, list[Any]]) -> None:
        self.fields, self.fetched = fields, 0

    def get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        self.fetched += 1
        names = [name for name in select_fields if name in self.fields]
        return list_of_dict_to_tensordict([
            {name: self.fields[name][i] for name in names} for i in range(len(keys))
        ])  # fmt: skip


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer whose actor was updated twice in step 5, and the queue that it read."""
    import torch
    import transfer_queue
    from hydra import compose, initialize_config_module
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.utils import tensordict_utils as tu

    monkeypatch.setenv("FIRSTBAD_RECORD", str(tmp_path / "record"))
    rng = torch.Generator().manual_seed(1)
    lengths = [(3, 4), (2, 2), (3, 5), (2, 3), (2, 3)]  # the last row is padding of the batch

    def each(make: Any) -> list[Any]:
        return [make(n_prompt, n) for n_prompt, n in lengths]

    def draw(_: int, n: int) -> Any:
        return -torch.rand(n, generator=rng)

    fields = {
        "prompts": each(lambda p, n: torch.arange(p) + 10),
        "responses": each(lambda p, n: torch.arange(n) + 20),
        "response_mask": each(lambda p, n: (torch.arange(n) != 1).long()),
        "rollout_log_probs": each(draw),
        "old_log_probs": each(draw),
        "entropy": each(lambda p, n: torch.rand(n, generator=rng)),
        "rm_scores": each(lambda p, n: torch.nn.functional.pad(torch.ones(1), (n - 1, 0))),
        "advantages": each(lambda p, n: torch.full((n,), 0.5)),
        "extra_fields": each(lambda p, n: {"reward_extra_info": {"acc": 1.0, "why": "text"}}),
        "reward_model": each(lambda p, n: {"ground_truth": str(n)}),
    }
    queue = Queue(fields)
    monkeypatch.setattr(transfer_queue, "kv_batch_get", queue.get)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            overrides=[
                "actor_rollout_ref.rollout.n=2",
                "data.max_response_length=5",
                "actor_rollout_ref.rollout.name=vllm",
            ],
        )
    trainer = object.__new__(PPOTrainerSync)
    vars(trainer).update(
        config=config,
        global_steps=5,
        tokenizer=SimpleNamespace(
            eos_token_id=23, pad_token_id=0, decode=lambda ids, **_: " ".join(map(str, ids))
        ),
        actor_rollout_wg=SimpleNamespace(
            update_actor=lambda batch: tu.get_tensordict(
                {}, {"metrics": {"grad_norm": [0.25], "mfu": [0.1]}}
            )
        ),
    )
    tags = [
        {"min_global_steps": 3 + i, "max_global_steps": 4, "is_padding": i == 4} for i in range(5)
    ]
    batch = KVBatchMeta(
        keys=["a_0_0", "a_1_0", "b_c_0_0", "b_c_1_0", "pad"], tags=tags, partition_id="train"
    )
    metrics: dict[str, Any] = {}
    for _ in range(2):
        trainer._update_actor(batch, metrics)
    return SimpleNamespace(trainer=trainer, queue=queue, metrics=metrics, fields=fields)


def test_fields_of_the_queue_become_a_step(trained: Any, tmp_path: Path) -> None:
    assert trained.metrics["actor/grad_norm"] == 0.25
    record = tmp_path / "record"
    folder = record / "steps" / "00000005"
    rows = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    assert [row["group"] for row in rows] == ["a", "a", "b_c", "b_c"]
    assert [row["policy_version"] for row in rows] == [3, 4, 5, 6]
    assert [row["n_tokens"] for row in rows] == [4, 2, 5, 3]
    assert [row.get("finish") for row in rows] == ["stop", None, "length", None]
    assert [row["gold"] for row in rows] == ["4", "2", "5", "3"]
    assert all(row["rewards"] == {"acc": 1.0} for row in rows)
    assert rows[0]["completion"] == "20 21 22 23"
    said = json.loads((record / "run.json").read_text())
    assert said["dropped_by_reason"] == {}
    run = open_run(f"rec:{record}")
    assert run.flight.at(5).whole_groups
    capture = run.captures.at(5).arrays
    old = np.asarray(capture["logp_old"])
    for i in range(4):
        own = trained.fields["old_log_probs"][i].numpy()
        given = old[i][np.isfinite(old[i])]
        assert np.allclose(given, np.delete(own, 1)), "what was not sampled has no log-prob"


def test_only_the_first_update_of_a_step_is_fetched(trained: Any) -> None:
    assert trained.queue.fetched == 1
