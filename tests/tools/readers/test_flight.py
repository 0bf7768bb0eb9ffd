from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools.beside import rows_of_capture
from firstbad.tools.errors import UserError
from firstbad.tools.flight import Clamp, Norms, ParameterGroup, SyncedTensor, Trail
from firstbad.tools.readers import open_run
from firstbad.tools.run import Run
from firstbad_recorder import Recorder

TOKENS = {
    "token_id": [[0, 7, 8, 5, 1], [7, 5, 5, 6, 1, 0]],
    "source": [[0, 2, 2, 3, 3], [2, 3, 4, 3, 3, 0]],
    "loss_mask": [[0, 0, 0, 1, 1], [0, 1, 0, 1, 1, 0]],
    "logp_new": [[None, None, None, -1.5, -0.25], [None, -2.0, None, -1.0, -0.5, None]],
    "advantage": [0.5, -0.5],
}


def write(folder: Path, **more: Any) -> Path:
    about = {"requested": {"beta": 0.1}, "versions": {"torch": "2.9.1"}, "device": "one card"}
    with Recorder(folder, config={"beta": 0.04}, **about) as recorder:  # type: ignore[arg-type]
        for step in (1, 2, 3):
            recorder.scalars(step, reward_mean=0.1 * step, loss=0.5)
        recorder.sync(
            1,
            version=2,
            engine_version=1,
            tensors=[
                {"name": "w", "trainer": "aa", "engine": None},
                {"name": "v", "trainer": "b", "engine": "b"},
            ],
            cache_cleared=False,
            n_sent=2.0,
        )
        recorder.probe(2, "accumulation", cosine=0.99, norm_ratio=4.0, bad=float("nan"))
        recorder.capture(
            2,
            tokens=TOKENS,
            rollouts=[
                {
                    "sample": "a",
                    "group": "g",
                    "prompt": "7 8",
                    "completion": "5",
                    "rewards": {"ok": 1},
                    "advantage": 0.5,
                    "policy_version": 1,
                    "errors": {"ok": None},
                    "finish": "stop",
                },
                {
                    "sample": "b",
                    "group": "g",
                    "prompt": "7",
                    "completion": "5 6",
                    "rewards": {"ok": float("nan")},
                    "advantage": -0.5,
                    "policy_version": 1,
                    "errors": {"ok": "Timeout"},
                    "finish": "stop",
                },
            ],
            microbatches=[
                {"rank": 0, "samples": ["a"], "n_tokens": 2, "denominator": 5, "loss": "NaN"}
            ],
            numerics={
                "trail": [
                    {"name": "exp", "place": "exp", "n": 4, "n_nonfinite": 1, "largest": 3.5}
                ],
                "clamps": [
                    {"name": "fuse", "place": "log_ratio", "low": -20, "high": 20, "n_hit": 3}
                ],
                "norms": [{"before_clip": 2.0, "after_clip": 1.0, "clip_value": 1.0}],
                "parameters": [{"name": "head", "update_norm": 0.25, "dtype": "bfloat16"}],
            },
            kept="first_bad",
            whole_groups=True,
            filters="before",
            first_pass=True,
            batch="b7",
            seeds={"sampler": 3},
            stages={"generated": ["a", "b"], "trained": ["b", "a"]},
            **more,
        )
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return open_run(str(write(tmp_path / "record")))


def test_rows_are_split_into_prompt_and_completion_of_one_width(run: Run) -> None:
    arrays = run.captures.at(2).arrays
    assert arrays["token_id"].tolist() == [[5, 1, 0, 0, 0], [5, 5, 6, 1, 0]]
    assert arrays["source"].tolist() == [[3, 3, 0, 0, 0], [3, 4, 3, 3, 0]]
    assert arrays["loss_mask"].tolist() == [[1, 1, 0, 0, 0], [1, 0, 1, 1, 0]]
    assert arrays["completion_mask"].tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]]
    assert arrays["prompt_token_id"].tolist() == [[0, 7, 8], [7, 0, 0]]
    assert arrays["prompt_mask"].tolist() == [[0, 1, 1], [1, 0, 0]]
    assert arrays["advantage"].tolist() == [0.5, -0.5]
    logp = run.captures.at(2).numbers("logp_new")
    assert logp is not None
    assert np.array_equal(
        logp, [[-1.5, -0.25, *[np.nan] * 3], [-2, np.nan, -1, -0.5, np.nan]], equal_nan=True
    )


@pytest.mark.parametrize("attended", [True, False])
def test_without_a_source_the_engine_tells_what_was_sampled(tmp_path: Path, attended: bool) -> None:
    # Of the padding before the first row only the attention mask tells.
    attention = {"attention_mask": [[0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]]} if attended else {}
    tokens = {
        **{name: values for name, values in TOKENS.items() if name != "source"},
        **attention,
        "logp_engine": [[None, None, None, -1.5, -0.2], [None, -2.0, None, -1.0, -0.5, None]],
    }
    with Recorder(tmp_path) as recorder:
        recorder.capture(2, tokens=tokens)
    arrays = open_run(str(tmp_path)).captures.at(2).arrays
    assert arrays["source"].tolist() == [[3, 3, 0, 0, 0], [3, 4, 3, 3, 0]]
    assert arrays["prompt_source"].tolist() == [[0 if attended else 2, 2, 2], [2, 0, 0]]


@pytest.mark.parametrize("mask", ["loss_mask", "attention_mask"])
def test_a_prompt_that_nothing_tells_apart_costs_the_step(tmp_path: Path, mask: str) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.scalars(2, loss=0.5)
        recorder.capture(2, tokens={"token_id": [[7, 8, 5, 1]], mask: [[0, 0, 1, 1]]})
        recorder.capture(3, tokens={"token_id": [[5, 6, 5, 1]], mask: [[1, 1, 1, 1]]})
    run = open_run(str(tmp_path))
    assert [capture.step for capture in run.captures] == [3]
    assert run.captures.at(3).arrays["source"].tolist() == [[3, 3, 3, 3]]
    assert "no `source`" in run.captures.unreadable[2]


def test_rollouts_have_their_names_errors_and_versions(run: Run) -> None:
    batch = run.rollouts.batch(2)
    assert batch.sample == ["a", "b"]
    assert batch.group.tolist() == [0, 0]
    assert batch.policy_version is not None
    assert batch.policy_version.tolist() == [1, 1]
    assert batch.errors == {"ok": [None, "Timeout"]}
    assert np.array_equal(batch.rewards["ok"], [1.0, np.nan], equal_nan=True)


def test_the_inside_of_a_step_is_read(run: Run) -> None:
    step = run.flight.at(2)
    assert (step.kept, step.filters, step.whole_groups, step.in_order) == (
        "first_bad", "before", True, None,
    )  # fmt: skip
    assert step.stages.trained == ("b", "a")
    assert step.seeds == {"sampler": 3}
    (part,) = step.microbatches
    assert (part.samples, part.n_tokens, part.denominator, part.loss) == (("a",), 2, 5.0, None)
    assert step.trail == (Trail("exp", "exp", n=4, n_nonfinite=1, largest=3.5),)
    assert step.clamps == (Clamp("fuse", "log_ratio", -20.0, 20.0, n_hit=3),)
    assert step.norms == (Norms(2.0, 1.0, 1.0),)
    assert step.parameters == (ParameterGroup("head", update_norm=0.25, dtype="bfloat16"),)


def test_deliveries_probes_and_settings_are_read(run: Run) -> None:
    (sync,) = run.flight.syncs
    assert (sync.version, sync.engine_version, sync.n_sent, sync.cache_cleared) == (2, 1, 2, False)
    assert sync.tensors == (SyncedTensor("w", "aa", None), SyncedTensor("v", "b", "b"))
    (probe,) = run.flight.probes_of("accumulation")
    assert (probe.number("cosine"), probe.number("norm_ratio"), probe.number("bad")) == (
        0.99, 4.0, None,
    )  # fmt: skip
    assert run.flight.requested == {"beta": 0.1}
    assert run.config.values["beta"] == 0.04
    assert (run.flight.versions, run.flight.device) == ({"torch": "2.9.1"}, "one card")


def test_files_of_steps_are_no_metrics(run: Run) -> None:
    assert sorted(run.signals.known) == ["loss", "reward_mean"]
    assert not run.signals.unknown
    assert [n.code for n in run.notes] == []


def test_a_record_inside_a_run_folder_is_read_with_it(tmp_path: Path) -> None:
    write(tmp_path / "record")
    (tmp_path / "trainer_state.json").write_text(
        json.dumps({"log_history": [{"step": 1, "loss": 0.25}, {"step": 2, "loss": 0.25}]})
    )
    run = open_run(str(tmp_path))
    assert run.flight.steps == (2,)
    assert run.captures.steps.tolist() == [2]


def rows(step: int, n: int) -> list[dict[str, Any]]:
    return [
        {"sample": f"{step}-{i}", "group": "g", "prompt": "p", "completion": f"c{i}",
         "reward": i, "advantage": i - (n - 1) / 2}
        for i in range(n)
    ]  # fmt: skip


def table(folder: Path, step: int, n: int) -> None:
    file = folder / "rollouts.jsonl"
    with file.open("a", encoding="utf-8") as lines:
        for row in rows(step, n):
            lines.write(json.dumps({**row, "step": step, "sample": None}) + "\n")


def test_a_step_that_trains_a_part_of_its_batch_keeps_both(tmp_path: Path) -> None:
    four = {"token_id": [[1]] * 2, "source": [[3]] * 2}
    with Recorder(tmp_path) as recorder:
        recorder.capture(1, rollouts=rows(1, 2), tokens=four)
        recorder.capture(2, rollouts=rows(1, 2), generated=rows(1, 4), tokens=four)
        recorder.capture(3, rollouts=rows(1, 4)[2:], generated=rows(1, 4), tokens=four)
    run = open_run(str(tmp_path))
    assert [len(run.rollouts.batch(s)) for s in (1, 2, 3)] == [2, 4, 4]
    assert run.rollouts.batch(3).repeats_step == 2
    at_3 = rows_of_capture(run, 3)
    assert at_3 is not None
    assert at_3.sample == ["1-2", "1-3"]


def test_tokens_of_tools_are_told_from_those_of_the_policy(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.scalars(1, loss=0.1)
        recorder.capture(1, rollouts=[{**r, "n_tokens": 9, "n_sampled": 7} for r in rows(1, 2)])
    batch = open_run(str(tmp_path)).rollouts.batch(1)
    assert batch.n_tokens is not None
    assert batch.n_sampled is not None
    assert (batch.n_tokens.tolist(), batch.n_sampled.tolist()) == ([9, 9], [7, 7])


def test_a_table_with_other_rows_than_the_record_counts_for_the_run(tmp_path: Path) -> None:
    with Recorder(tmp_path / "record") as recorder:
        recorder.capture(1, rollouts=rows(1, 2))
        recorder.capture(2, rollouts=[{**row, "errors": {"r": "late"}} for row in rows(1, 4)])
        recorder.capture(4, rollouts=rows(4, 4))
    for step in (1, 2, 3):
        table(tmp_path, step, 4)
    run = open_run(str(tmp_path))
    assert [len(run.rollouts.batch(s)) for s in (1, 2, 3, 4)] == [4] * 4
    assert run.rollouts.batch(2).errors, "the same rows: the record knows more of them"
    assert [run.rollouts.batch(s).repeats_step for s in (1, 2, 3, 4)] == [None, 1, 1, None]
    own = rows_of_capture(run, 1)
    assert own is not None
    assert len(own) == 2


def test_steps_that_a_later_process_made_again_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(first: int, last: int, kept: Sequence[int], at: float) -> None:
        monkeypatch.setattr(time, "time", lambda: at)
        recorder = Recorder(tmp_path, process_ends=False)
        for step in range(first, last + 1):
            recorder.scalars(step, loss=0.1)
            if step in kept:
                recorder.capture(step, rollouts=rows(step, 2), tokens={"token_id": [[1]] * 2})

    made(1, 6, kept=(2, 3, 4, 6), at=1000.0)  # killed; from a checkpoint at step 2 on:
    made(3, 5, kept=(3,), at=2000.0)
    run = open_run(str(tmp_path))
    # Step 6 was not made again so far.
    assert run.flight.steps == (2, 3, 6)
    assert run.rollouts.steps.tolist() == run.captures.steps.tolist() == [2, 3, 6]
    assert (
        "made them again from a checkpoint: 4"
        in [n.text for n in run.notes if n.code == "abandoned"][0]
    )


@pytest.mark.parametrize("tools", [False, True])
def test_dumps_that_know_of_no_tools_are_left_out_where_the_record_does(
    tmp_path: Path, tools: bool
) -> None:
    source = [[3, 4 if tools else 3, 3]]
    with Recorder(tmp_path / "record") as recorder:
        recorder.capture(1, tokens={"token_id": [[1, 2, 3]], "source": source})
    (tmp_path / "batch_dumps").mkdir()
    np.savez(
        tmp_path / "batch_dumps" / "step_00002.npz",
        completion_ids=np.array([[1, 2, 3]]),
        completion_mask=np.ones((1, 3)),
    )
    run = open_run(str(tmp_path))
    assert run.captures.steps.tolist() == ([1] if tools else [1, 2])


def test_several_records_are_not_read_as_one(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    with pytest.raises(UserError, match=r"holds 2 records \(`a/`, `b/`\): name one of them"):
        open_run(str(tmp_path))


def test_an_unfinished_step_is_not_read(tmp_path: Path) -> None:
    write(tmp_path)
    shutil.copytree(tmp_path / "steps/00000002", tmp_path / "steps/00000003.unfinished")
    assert open_run(str(tmp_path)).flight.steps == (2,)


@pytest.mark.parametrize(
    "offsets", [[0, 5, 12], [0, 6, 5], [-1, 5, 11], [], [0.0, 5.0, 11.0]], ids=str
)
def test_offsets_that_are_none_cost_that_step_only(tmp_path: Path, offsets: list[float]) -> None:
    write(tmp_path)
    file = tmp_path / "steps/00000002/tokens.safetensors"
    values = np.array(offsets, np.int64 if all(isinstance(v, int) for v in offsets) else np.float64)
    file.write_bytes(replaced(file.read_bytes(), "offsets", values))
    run = open_run(str(tmp_path))
    assert list(run.captures) == []
    assert "tokens.safetensors" in run.captures.unreadable[2]
    assert run.flight.at(2).microbatches


def replaced(data: bytes, name: str, values: np.ndarray) -> bytes:
    """The safetensors file with another array of that name, put at its end."""
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    new = values.tobytes()
    kind = {"i": "I64", "f": "F64"}[values.dtype.kind]
    header[name] = {"dtype": kind, "shape": [len(values)],
                    "data_offsets": [len(body), len(body) + len(new)]}  # fmt: skip
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + body + new


def test_rows_that_name_no_weights(tmp_path: Path) -> None:
    """A version that is missing in one row does not take away those of the others."""
    rows = [{"prompt": "7", "completion": "5", "reward": 1.0, "group": "g"}] * 2
    with Recorder(tmp_path) as recorder:
        recorder.scalars(1, loss=0.5)
        for step, versions in ((1, (3, None)), (2, (None, None))):
            told = [{**r, "policy_version": v} for r, v in zip(rows, versions, strict=True)]
            recorder.capture(step, rollouts=told)
    run = open_run(str(tmp_path))
    version = run.rollouts.batch(1).policy_version
    assert version is not None
    assert np.array_equal(version, [3, np.nan], equal_nan=True)
    assert run.rollouts.batch(2).policy_version is None
