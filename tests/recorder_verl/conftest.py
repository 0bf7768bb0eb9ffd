"""verl's V0 trainer with its own loop, and a small policy in the place of its workers.

Real: the config, `RayPPOTrainer.fit` and all that it computes itself, `ppo_loss`, `BaseEngine`,
`CheckpointEngineManager` and `Tracking`. Not real: Ray, the worker group, the rollout engine, FSDP.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import firstbad_recorder.verl  # noqa: F401  # before any module of verl, as verl itself would

MakeTrainer = Callable[..., Any]
PAD, STOP, COPY, COLON, DIGIT = 0, 1, 2, 3, 4
V, N_PROMPT, N_RESPONSE = 14, 4, 24
TEXTS = ["", "", "copy", ":", *(str(i) for i in range(10))]
GROUPS, SIZE = 4, 8


class Tokenizer:
    eos_token_id, pad_token_id = STOP, PAD

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return " ".join(text for i in ids if (text := TEXTS[int(i)]))


@pytest.fixture
def make_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTrainer:
    """`make_trainer(temperature=..., **overrides)`: a trainer whose `fit` makes `n_steps` steps."""
    import torch
    import verl.checkpoint_engine.base as delivery
    from hydra import compose, initialize_config_module
    from tensordict import TensorDict
    from verl.protocol import DataProto
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.utils import tensordict_utils as tu
    from verl.workers.config import ActorConfig
    from verl.workers.engine.base import BaseEngine
    from verl.workers.utils import losses

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(delivery, "ray", SimpleNamespace(get=lambda found: found))

    class Policy(torch.nn.Module):
        """Logits by the digit of the prompt and the token before."""

        def __init__(self) -> None:
            super().__init__()
            self.common = torch.nn.Parameter(torch.zeros(V, V))
            self.table = torch.nn.Parameter(torch.zeros(10, V, V))
            self.table.data[:, :, STOP] = 1.5  # about a quarter: answers of four tokens
            self.table.data[range(10), :, range(DIGIT, V)] = 1.5  # one in four is right

        def forward(self, digit: Any, before: Any) -> Any:
            logits = self.table[digit, before] + self.common[before]
            logits[..., [PAD, COPY, COLON]] = -30.0
            return logits

        def rows(self, ids: Any, temperature: float = 1.0) -> tuple[Any, Any]:
            """Nested (R, T): log-prob of the next token at each place, and the entropy there."""
            logps, entropies = [], []
            for row in ids.unbind():
                digit = int(row[row.tolist().index(COPY) + 1]) - DIGIT
                dist = torch.log_softmax(
                    self(torch.full_like(row, digit), row) / temperature, dim=-1
                )
                after = torch.roll(row, -1)
                logps.append(dist.gather(1, after[:, None])[:, 0])
                entropies.append(-(dist.exp() * dist).sum(-1))
            nested = partial(torch.nested.as_nested_tensor, layout=torch.jagged)
            return nested(logps), nested(entropies)

    class Engine(BaseEngine):
        def __init__(self, policy: Policy, clip: float, n_micro: int) -> None:
            self.policy, self.n_micro = policy, n_micro
            self.optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
            self.optimizer_config = SimpleNamespace(clip_grad=clip)
            self.seen: list[dict[str, Any]] = []

        is_param_offload_enabled = False
        is_optimizer_offload_enabled = False

        def is_mp_src_rank_with_outputs(self) -> bool:
            return True

        def optimizer_zero_grad(self) -> None:
            self.optimizer.zero_grad()

        def optimizer_step(self) -> float:
            clip = self.optimizer_config.clip_grad
            norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), clip)
            self.optimizer.step()
            return float(norm)

        def forward_backward_batch(
            self, data: Any, loss_function: Any, forward_only: bool = False
        ) -> Any:
            tu.assign_non_tensor(data, batch_num_tokens=float(data["loss_mask"].sum()), dp_size=1)
            total: list[Any] = []
            for part in tu.chunk_tensordict(data, self.n_micro):
                logp, entropy = self.policy.rows(part["input_ids"])
                output = {"log_probs": logp, "entropy": entropy}
                loss, _ = loss_function(model_output=output, data=part, dp_group=None)
                loss.backward()
                total.append(float(loss.detach()))
                self.seen.append({"loss": total[-1], "tokens": int(part["loss_mask"].sum())})
            return {"metrics": {}, "loss": total}

    class Workers:
        """What the driver asks of its worker group, computed here."""

        world_size = 1

        def __init__(self, policy: Policy, config: Any, fault: Any) -> None:
            actor = config.actor_rollout_ref.actor
            self.policy, self.fault = policy, fault
            self.loss = partial(
                losses.ppo_loss,
                config=ActorConfig(
                    strategy="fsdp",
                    rollout_n=SIZE,
                    ppo_micro_batch_size_per_gpu=1,
                    loss_agg_mode=actor.loss_agg_mode,
                ),
            )
            self.engine = Engine(policy, actor.grad_clip, 2)

        def compute_log_prob(self, data: Any) -> Any:
            with torch.no_grad():
                logp, entropy = self.policy.rows(data["input_ids"])
            return tu.get_tensordict(
                {"log_probs": logp, "entropy": entropy}, {"metrics": {"mfu": 0.1}}
            )

        def update_actor(self, data: Any) -> Any:
            if self.fault is not None:
                self.fault()
            norms = []
            size, n = tu.get(data, "mini_batch_size"), len(data)
            for part in tu.chunk_tensordict(data, max(1, n // size)):
                out = self.engine.train_batch(part, loss_function=self.loss)
                norms.append(out["metrics"]["grad_norm"])
            metrics = {"grad_norm": norms, "mfu": [0.1], "lr": [0.1]}
            return tu.get_tensordict({}, {"metrics": metrics})

        def update_weights(self, global_steps: Any = None, mode: str = "auto") -> list[Any]:
            from firstbad_recorder.verl import worker

            worker.flush(global_steps)  # in verl: a method of the worker, in its own process
            return []

    class Rollouts:
        """Samples from the policy; gives log-probs at `temperature`, which should be 1."""

        def __init__(self, policy: Policy, temperature: float, tools: bool) -> None:
            self.policy, self.temperature, self.tools = policy, temperature, tools
            self.generator = torch.Generator().manual_seed(5)

        def generate_sequences(self, asked: Any) -> Any:
            prompts = asked.batch["prompts_asked"]
            n = len(prompts)
            digit = prompts[:, -2] - DIGIT
            before, alive = prompts[:, -1], torch.ones(n, dtype=torch.bool)
            ids, logps, masks, attended = [], [], [], []
            for place in range(N_RESPONSE):
                with torch.no_grad():
                    logits = self.policy(digit, before)
                taken = torch.multinomial(torch.softmax(logits, -1), 1, generator=self.generator)[
                    :, 0
                ]
                tool = torch.zeros(n, dtype=torch.bool)
                if self.tools and place == 1:  # what a tool answers is not sampled
                    tool = torch.arange(n) % 2 == 0
                    taken = torch.where(tool, COLON, taken)
                dist = torch.log_softmax(logits / self.temperature, -1)
                logp = dist.gather(1, taken[:, None])[:, 0]
                sampled = alive & ~tool
                ids.append(torch.where(alive, taken, PAD))
                logps.append(torch.where(sampled, logp, 0.0))
                masks.append(sampled.long())
                attended.append(alive.long())
                alive = alive & (taken != STOP)
                before = taken
            responses, mask = torch.stack(ids, 1), torch.stack(masks, 1)
            attention = torch.cat([(prompts != PAD).long(), torch.stack(attended, 1)], 1)
            scores = torch.zeros(n, N_RESPONSE)
            last = torch.stack(attended, 1).sum(1) - 1
            said = responses[torch.arange(n), (last - 1).clamp(min=0)] - DIGIT
            stopped = responses[torch.arange(n), last] == STOP
            right = ((said == digit) & stopped & (last > 0)).float()
            scores[torch.arange(n), last] = right
            tensors = {
                "prompts": prompts,
                "responses": responses,
                "response_mask": mask,
                "input_ids": torch.cat([prompts, responses], 1),
                "attention_mask": attention,
                "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
                "rollout_log_probs": torch.stack(logps, 1),
                "rm_scores": scores,
            }
            others = {
                "multi_modal_inputs": np.array([{} for _ in range(n)], dtype=object),
                "__num_turns__": np.full(n, 2, dtype=np.int32),
                "acc": right.numpy(),
                "note": np.array(["x"] * n, dtype=object),
            }
            return DataProto(
                batch=TensorDict(tensors, batch_size=[n]),
                non_tensor_batch=others,
                meta_info={"timing": {}, "reward_extra_keys": ["acc", "note"]},
            )

    def asked(n_steps: int) -> list[dict[str, Any]]:
        draw = np.random.default_rng(3)
        found = []
        for _ in range(n_steps):
            digits = draw.integers(0, 10, GROUPS).tolist()
            before = [PAD if d == 0 else DIGIT + d for d in draw.integers(0, 10, GROUPS).tolist()]
            rows = [[b, COPY, DIGIT + d, COLON] for b, d in zip(before, digits, strict=True)]
            prompts = torch.tensor(rows)
            found.append(
                {
                    "prompts_asked": prompts,
                    "reward_model": np.array(
                        [{"ground_truth": str(d), "style": "rule"} for d in digits], dtype=object
                    ),
                    "data_source": np.array(["copy"] * GROUPS, dtype=object),
                }
            )
        return found

    def make(
        *overrides: str,
        n_steps: int = 14,
        temperature: float = 1.0,
        tools: bool = False,
        fault: Callable[[], None] | None = None,
    ) -> Any:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose(
                "ppo_trainer",
                overrides=[
                    "algorithm.adv_estimator=grpo",
                    "trainer.use_v1=false",
                    "trainer.logger=[file]",
                    "trainer.project_name=p",
                    "trainer.experiment_name=e",
                    f"trainer.default_local_dir={tmp_path}/out",
                    "trainer.val_before_train=false",
                    "trainer.test_freq=-1",
                    "trainer.balance_batch=false",
                    "trainer.resume_mode=disable",
                    "trainer.n_gpus_per_node=1",
                    "trainer.total_epochs=1",
                    f"data.train_batch_size={GROUPS}",
                    f"data.max_prompt_length={N_PROMPT}",
                    f"data.max_response_length={N_RESPONSE}",
                    f"actor_rollout_ref.rollout.n={SIZE}",
                    "actor_rollout_ref.rollout.name=vllm",
                    f"actor_rollout_ref.actor.ppo_mini_batch_size={GROUPS}",
                    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
                    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
                    "actor_rollout_ref.actor.optim.lr=0.1",
                    "+trainer.wandb_api_key=xyz",
                    *overrides,
                ],
            )
        torch.manual_seed(0)
        policy = Policy()
        trainer = object.__new__(RayPPOTrainer)
        workers = Workers(policy, config, fault)
        manager = object.__new__(delivery.CheckpointEngineManager)
        manager.backend, manager.actor_wg, manager.replicas = "naive", workers, []
        manager.sleep_replicas = lambda: None
        vars(trainer).update(
            config=config,
            tokenizer=Tokenizer(),
            actor_rollout_wg=workers,
            checkpoint_manager=manager,
            async_rollout_manager=Rollouts(policy, temperature, tools),
            train_dataloader=asked(n_steps),
            train_dataset=[],
            total_training_steps=n_steps,
            use_critic=False,
            use_rm=False,
            use_reference_policy=False,
            resource_pool_manager=SimpleNamespace(get_n_gpus=lambda: 1),
            _dump_executor=ThreadPoolExecutor(1),
            _dump_futures=[],
        )
        trainer._get_gen_batch = lambda batch: batch.select(batch_keys=["prompts_asked"])
        return trainer

    return make


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process keeps for its life is forgotten between tests."""
    from firstbad_recorder.verl import driver, where, worker

    monkeypatch.setattr(driver, "_now", None)
    monkeypatch.setattr(worker, "_here", worker._Worker())
    monkeypatch.setattr(where, "_said", set())
    monkeypatch.delenv("FIRSTBAD_RECORD", raising=False)
    monkeypatch.delenv("FIRSTBAD_RECORD_OPTIONS", raising=False)


@pytest.fixture
def tensors_in() -> Callable[[Path], dict[str, Any]]:
    """`tensors_in(file)`: the flat arrays of a safetensors file."""

    def read(file: Path) -> dict[str, Any]:
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        kinds = {"I64": "<i8", "U8": "|u1", "F32": "<f4"}
        return {
            name: np.frombuffer(data[8 + size :][slice(*of["data_offsets"])], kinds[of["dtype"]])
            for name, of in json.loads(data[8 : 8 + size]).items()
        }

    return read
