"""TRL output directories: histories, resumes, completions, answers, configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools.paths import digest
from firstbad.tools.readers import open_run
from firstbad.tools.registry import run_tool
from firstbad.tools.run import Run

Rows = Callable[[int], list[dict[str, Any]]]


def rows(first: int, last: int, shift: float = 0.0) -> list[dict[str, Any]]:
    return [
        {"step": s, "epoch": s / 100, "reward": s / 8 + shift, "loss": 0.5}
        for s in range(first, last + 1)
    ]


def resumes(run: Run) -> list[int | None]:
    return [event.step for event in run.events if event.kind == "resume"]


def codes(run: Run) -> set[str]:
    return {note.code for note in run.notes}


END = {
    "step": 10,
    "epoch": 0.1,
    "train_runtime": 5.0,
    "train_loss": 0.25,
    "total_flos": 0.0,
    "train_samples_per_second": 2.0,
    "train_steps_per_second": 1.0,
}


# Histories and resumes


def test_checkpoints_of_one_segment_add_nothing(make: Any, tmp_path: Path) -> None:
    make.state("checkpoint-4/trainer_state.json", rows(1, 4))
    make.state("checkpoint-8/trainer_state.json", rows(1, 8))
    make.state("trainer_state.json", [*rows(1, 10), END])
    run = open_run(str(tmp_path))
    assert run.signals.steps.tolist() == list(range(1, 11))
    assert resumes(run) == []
    assert "duplicates" not in codes(run)
    assert [(c.step, c.state_step) for c in run.checkpoints] == [(4, 4), (8, 8)]
    end = run.events[-1]
    assert (end.kind, end.step) == ("end", 10)
    assert "train_runtime=5.0" in end.text
    assert "train_loss" not in run.signals.unknown


def test_only_checkpoints(make: Any, tmp_path: Path) -> None:
    make.state("checkpoint-4/trainer_state.json", rows(1, 4))
    make.state("checkpoint-10/trainer_state.json", rows(1, 10))
    run = open_run(str(tmp_path))
    assert run.signals.steps.tolist() == list(range(1, 11))
    assert [event.kind for event in run.events] == []


def test_other_values_at_equal_steps_are_a_resume(make: Any, tmp_path: Path) -> None:
    make.state("checkpoint-4/trainer_state.json", rows(1, 4))
    make.state("checkpoint-8/trainer_state.json", rows(1, 8))
    make.state("trainer_state.json", [*rows(1, 4), *rows(5, 10, shift=1.0)])
    run = open_run(str(tmp_path))
    assert resumes(run) == [5]
    assert run.signals.known["reward_mean"].at(6) == 6 / 8 + 1.0  # the newest wins
    assert any("4 values" in note.text for note in run.notes if note.code == "duplicates")


def test_a_history_that_starts_late_is_a_resume(make: Any, tmp_path: Path) -> None:
    make.state("checkpoint-4/trainer_state.json", rows(1, 4))
    make.state("trainer_state.json", rows(5, 10))
    run = open_run(str(tmp_path))
    assert resumes(run) == [5]
    assert run.signals.steps.tolist() == list(range(1, 11))


def test_a_step_that_goes_back_is_a_resume(make: Any, tmp_path: Path) -> None:
    make.state("trainer_state.json", [*rows(1, 8), *rows(5, 10, shift=1.0)])
    run = open_run(str(tmp_path))
    assert resumes(run) == [5]
    assert run.signals.known["reward_mean"].at(7) == 7 / 8 + 1.0


def test_an_epoch_that_goes_back_is_a_resume(make: Any, tmp_path: Path) -> None:
    history = rows(1, 10)
    for row in history[6:]:
        row["epoch"] -= 0.06
    make.state("trainer_state.json", history)
    assert resumes(open_run(str(tmp_path))) == [7]


def test_rows_after_the_end_are_a_resume(make: Any, tmp_path: Path) -> None:
    make.state("trainer_state.json", [*rows(1, 10), END, *rows(11, 12)])
    run = open_run(str(tmp_path))
    assert resumes(run) == [11]
    assert [(e.kind, e.step) for e in run.events] == [("end", 10), ("resume", 11)]


def test_eval_rows_share_a_step_with_training_rows(make: Any, tmp_path: Path) -> None:
    history = rows(1, 4)
    history.insert(2, {"step": 2, "epoch": 0.02, "eval_reward": 0.75, "eval_loss": 0.1})
    make.state("trainer_state.json", history)
    run = open_run(str(tmp_path))
    assert run.signals.known["eval/reward_mean"].at(2) == 0.75
    assert run.signals.known["reward_mean"].at(2) == 0.25
    assert resumes(run) == []
    assert "duplicates" not in codes(run)


def test_missing_rows_are_noted(make: Any, tmp_path: Path) -> None:
    make.state("trainer_state.json", [*rows(1, 20), *rows(25, 40)])
    run = open_run(str(tmp_path))
    assert any("4 steps missing, the first after 20" in note.text for note in run.notes)


def test_null_is_missing_and_nan_is_counted(make: Any, tmp_path: Path) -> None:
    make.text(
        "trainer_state.json",
        '{"global_step": 3, "log_history": [{"step": 1, "reward": null, "kl": NaN},'
        '{"step": 2, "reward": 0.5, "kl": Infinity}, {"step": 3, "reward": "0.75", "kl": NaN}]}',
    )
    run = open_run(str(tmp_path))
    reward, kl = run.signals.known["reward_mean"], run.signals.known["kl_ref"]
    assert reward.steps.tolist() == [2, 3]
    assert reward.nonfinite_steps == ()
    assert kl.nonfinite_steps == (1, 2, 3)
    assert len(kl.values) == 0


def test_a_state_that_was_cut_off(make: Any, tmp_path: Path) -> None:
    path = make.state("trainer_state.json", rows(1, 10))
    path.write_bytes(path.read_bytes()[:-200])
    run = open_run(str(tmp_path))
    assert "file_cut" in codes(run)
    assert 5 < len(run.signals.steps) < 10


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"log_history": 3}', "[[[[", "\0\0\0"])
def test_a_broken_state_is_a_note(make: Any, tmp_path: Path, text: str) -> None:
    make.text("trainer_state.json", text)
    make.state("checkpoint-4/trainer_state.json", rows(1, 4))
    run = open_run(str(tmp_path))
    assert run.signals.steps.tolist() == [1, 2, 3, 4]
    assert codes(run) & {"file_cut", "file_skipped"}


def test_rows_without_a_usable_step_are_left_out(make: Any, tmp_path: Path) -> None:
    odd = [{"step": s, "reward": 1.0} for s in (None, "x", -1, 1.5, 1e300, float("nan"), [1])]
    make.text(
        "trainer_state.json", json.dumps({"log_history": [*odd, 7, None, {"step": 3, "reward": 2}]})
    )
    assert open_run(str(tmp_path)).signals.steps.tolist() == [3]


# What trainer_state lacks


def test_tensorboard_fills_what_is_missing(make: Any, tmp_path: Path) -> None:
    make.state("checkpoint-4/trainer_state.json", rows(1, 4))
    tags = [{"step": r["step"], "train/reward": -1.0, "train/extra": 2.0} for r in rows(1, 6)]
    make.board("tb/events.out.tfevents.1.h.1.0", tags)
    run = open_run(str(tmp_path))
    reward = run.signals.known["reward_mean"]
    assert reward.at(4) == 0.5
    assert reward.at(5) == -1.0
    assert set(run.signals.unknown) == {"extra"}
    assert "filled" in codes(run)
    assert {source.ref for source in run.sources} == {
        "checkpoint-4/trainer_state.json",
        "tb/events.out.tfevents.1.h.1.0",
    }


def test_the_console_serves_only_steps_that_nothing_else_has(make: Any, tmp_path: Path) -> None:
    make.state("checkpoint-4/trainer_state.json", rows(1, 4))
    lines = [f"step {s}/10 reward={s} kl=0.5" for s in range(1, 7)]
    make.text("train.log", "\n".join(lines))
    run = open_run(str(tmp_path))
    assert run.signals.known["reward_mean"].steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert run.signals.known["reward_mean"].at(4) == 0.5
    assert run.signals.known["kl_ref"].steps.tolist() == [5, 6]
    assert any("console" in note.text for note in run.notes)


def test_two_event_files_are_a_resume(make: Any, tmp_path: Path) -> None:
    tags = [{"step": r["step"], "train/reward": r["reward"]} for r in rows(1, 10)]
    make.board("runs/b/events.out.tfevents.200.h.1.0", tags[6:])
    make.board("runs/a/events.out.tfevents.100.h.1.0", tags[:8])
    run = open_run(f"trl:{tmp_path}")
    assert resumes(run) == [7]
    assert run.signals.steps.tolist() == list(range(1, 11))


ARGS = "args/text_summary"
LAUNCH = '{"beta": 0.1, "max_steps": 8}'


@pytest.mark.parametrize(
    ("first", "second", "changed"),
    [
        ({ARGS: LAUNCH}, {ARGS: '{"beta": 0.2, "max_steps": 8, "seed": 1}'}, {"beta", "seed"}),
        ({ARGS: LAUNCH}, {ARGS: LAUNCH}, set()),
        ({ARGS: LAUNCH}, {}, None),
        ({}, {ARGS: LAUNCH}, None),
    ],
)
def test_settings_that_launches_state_otherwise(
    make: Any,
    tmp_path: Path,
    first: dict[str, str],
    second: dict[str, str],
    changed: set[str] | None,
) -> None:
    tags = [{"step": r["step"], "train/reward": r["reward"]} for r in rows(1, 10)]
    make.board("runs/a/events.out.tfevents.100.h.1.0", tags[:6], first)
    make.board("runs/b/events.out.tfevents.200.h.1.0", tags[6:], second)
    assert open_run(f"trl:{tmp_path}").config.changed == changed


def test_one_launch_does_not_say_what_others_changed(make: Any, tmp_path: Path) -> None:
    tags = [{"step": r["step"], "train/reward": r["reward"]} for r in rows(1, 10)]
    make.board("runs/a/events.out.tfevents.100.h.1.0", tags, {ARGS: LAUNCH})
    assert open_run(f"trl:{tmp_path}").config.changed is None


def test_what_several_files_say_of_one_resume_is_one_event(make: Any, tmp_path: Path) -> None:
    make.state("checkpoint-8/trainer_state.json", rows(1, 8))
    make.state("trainer_state.json", [*rows(1, 4), *rows(5, 10, shift=1.0)])
    make.text(
        "train.log",
        "start segment 1/2: max_steps=10 lr=0.1 resume=no\nstep 8/10 reward=1\n"
        "start segment 2/2: max_steps=10 lr=0.2 resume=checkpoint-4\nstep 5/10 reward=1\n",
    )
    run = open_run(str(tmp_path))
    (resume,) = [event for event in run.events if event.kind == "resume"]
    assert resume.step == 5
    assert "other values" in resume.text
    assert "lr=0.2" in resume.text
    (change,) = [event for event in run.events if event.kind == "config_change"]
    assert (change.step, change.text) == (5, "lr: 0.1 -> 0.2")


# Completions


def chat(row: dict[str, Any], system: str = "") -> dict[str, Any]:
    prompt = [{"role": "user", "content": row["prompt"]}]
    if system:
        prompt.insert(0, {"role": "system", "content": system})
    return {
        **row,
        "prompt": prompt,
        "completion": [{"role": "assistant", "content": row["completion"]}],
    }


def test_opening_reads_no_completion_file(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    make.state("trainer_state.json", rows(1, 3))
    make.text("completions/completions_00001.parquet", "no parquet, but long enough")
    run = open_run(str(tmp_path))
    assert run.rollouts.steps.tolist() == [1]
    assert "file_skipped" not in codes(run)
    assert len(run.rollouts.batch(1)) == 0
    assert "file_skipped" in codes(run)


def test_the_digest_is_of_what_was_read(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    make.completions(1, rollouts(1))
    file = tmp_path / "completions" / "completions_00001.parquet"
    read = digest(file.read_bytes())
    run = open_run(str(tmp_path))
    assert len(run.rollouts.batch(1))
    file.write_bytes(b"others by now")
    (source,) = run.rollouts.sources(1)
    assert source.digest == read


def test_an_empty_file_among_good_ones(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    make.completions(1, rollouts(1))
    make.text("completions/completions_00002.parquet", "")
    run = open_run(str(tmp_path))
    assert run.rollouts.steps.tolist() == [1]
    assert any("is empty" in note.text for note in run.notes)


def test_strings_and_messages_give_the_same_text(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    make.completions(1, rollouts(1))
    make.completions(2, [{**chat(row), "step": 2} for row in rollouts(1)])
    make.completions(3, [{**chat(row, "Be brief."), "step": 3} for row in rollouts(1)])
    run = open_run(str(tmp_path))
    one, two, three = (run.rollouts.batch(step) for step in (1, 2, 3))
    assert list(one.prompts) == list(two.prompts)
    assert list(one.completions) == list(two.completions) == list(three.completions)
    assert three.prompts[0] == "Be brief.\n" + one.prompts[0]


def test_messages_of_other_forms(make: Any, tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image", "text": None}]
    make.completions(
        1,
        [
            {
                "step": 1,
                "prompt": [{"role": "user", "content": parts}],
                "completion": [
                    {"role": "assistant", "content": None},
                    {"role": "tool", "content": "4"},
                    {"role": "assistant", "content": "four"},
                ],
                "exact": 1.0,
            },
            {"step": 1, "prompt": [], "completion": [], "exact": None},
        ],
    )
    batch = open_run(str(tmp_path)).rollouts.batch(1)
    assert list(batch.prompts) == ["look", ""]
    assert list(batch.completions) == ["4\nfour", ""]
    assert np.isnan(batch.rewards["exact"][1])
    assert batch.advantage is None


def test_groups_by_position_keep_equal_neighbours_apart(make: Any, tmp_path: Path) -> None:
    make.json("args.json", {"num_generations": 2})
    data = [{"prompt": "same", "completion": str(i), "exact": 0.5} for i in range(4)]
    make.completions(1, data)
    batch = open_run(str(tmp_path)).rollouts.batch(1)
    assert batch.group.tolist() == [0, 0, 1, 1]
    assert batch.group_source == "position"


@pytest.mark.parametrize(
    ("prompts", "group"),
    [("abab", [0, 1, 0, 1]), ("aaab", [0, 0, 0, 1]), ("aab", [0, 0, 1])],
)
def test_groups_that_do_not_fit_are_those_of_the_prompts(
    make: Any, tmp_path: Path, prompts: str, group: list[int]
) -> None:
    make.json("args.json", {"num_generations": 2})
    make.completions(1, [{"prompt": p, "completion": p, "exact": 0.5} for p in prompts])
    batch = open_run(str(tmp_path)).rollouts.batch(1)
    assert batch.group.tolist() == group
    assert batch.group_source == "prompt"


def test_rollouts_of_an_evaluation_are_left_out(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    for step in (1, 2, 3, 4):
        make.completions(step, rollouts(step))
    state = [*rows(1, 4), {"step": 2, "eval_reward": 0.5}, {"step": 4, "eval_reward": 0.5}]
    make.state("trainer_state.json", state)
    run = open_run(str(tmp_path))
    assert run.rollouts.steps.tolist() == [1, 3]
    assert run.evaluations.steps.tolist() == [2, 4]
    assert run.evaluations.batch(4).prompts == [row["prompt"] for row in rollouts(4)]
    (note,) = [note.text for note in run.notes if note.code == "evaluation"]
    assert note.startswith("rollouts at evaluations (step 2, 4) are those of the evaluation")


def test_an_evaluation_at_other_steps_takes_no_rollouts(
    make: Any, tmp_path: Path, rollouts: Rows
) -> None:
    for step in (1, 2, 3):
        make.completions(step, rollouts(step))
    state = [*rows(1, 4), {"step": 4, "eval_reward": 0.5}, {"step": 2, "eval_own_score": 0.5}]
    make.state("trainer_state.json", state)
    run = open_run(str(tmp_path))
    assert run.rollouts.steps.tolist() == [1, 2, 3]
    assert "evaluation" not in codes(run)


def test_where_only_evaluations_left_rollouts_that_is_said(
    make: Any, tmp_path: Path, rollouts: Rows
) -> None:
    make.completions(2, rollouts(2))
    make.state("trainer_state.json", [*rows(1, 4), {"step": 2, "eval_reward": 0.5}])
    found = run_tool("check_rows", open_run(str(tmp_path)), {}, evidence_id="E1")
    assert found.status == "no_data"
    assert found.summary.startswith("rollouts at evaluations (step 2) are")


def test_the_same_batch_written_twice(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    for step, content in ((1, 1), (2, 1), (3, 1), (4, 2), (5, 1)):
        make.completions(step, [{**row, "step": step} for row in rollouts(content)])
    run = open_run(str(tmp_path))
    assert run.rollouts.batch(3).repeats_step == 1  # asked for first, out of order
    assert [run.rollouts.batch(s).repeats_step for s in (1, 2, 4, 5)] == [None, 1, None, None]
    assert [batch.step for batch in run.rollouts.batches()] == [1, 4, 5]


def test_reward_columns(make: Any, tmp_path: Path) -> None:
    row = {"step": 1, "prompt": "a", "completion": "b", "exact": 1.0, "noise": 0.5, "n": 3}
    make.completions(1, [{**row, "advantage": 0.0}])
    assert set(open_run(str(tmp_path)).rollouts.batch(1).rewards) == {"exact", "noise"}
    make.state("trainer_state.json", [{"step": 1, "rewards/exact/mean": 1.0}])
    run = open_run(str(tmp_path))
    assert set(run.rollouts.batch(1).rewards) == {"exact"}
    assert any("noise" in note.text for note in run.notes)


def test_a_reward_that_nobody_got(make: Any, tmp_path: Path) -> None:
    make.state("trainer_state.json", [{"step": 1, "rewards/exact/mean": 1.0}])
    make.completions(1, [{"prompt": "a", "completion": "b", "exact": None}])
    rewards = open_run(str(tmp_path)).rollouts.batch(1).rewards
    assert np.isnan(rewards["exact"]).all()


def test_a_huge_completion_is_shortened(make: Any, tmp_path: Path) -> None:
    make.completions(1, [{"prompt": "a", "completion": "x" * 10_000_000, "exact": 1.0}])
    run = open_run(str(tmp_path))
    assert len(run.rollouts.batch(1).completions[0]) == 200_000
    assert "text_cut" in codes(run)


def test_a_file_without_completions(make: Any, tmp_path: Path) -> None:
    make.state("trainer_state.json", rows(1, 1))
    make.parquet("completions/completions_00001.parquet", [{"step": 1, "x": 1.0}])
    run = open_run(str(tmp_path))
    assert len(run.rollouts.batch(1)) == 0
    assert list(run.rollouts.batches()) == []
    assert "file_skipped" in codes(run)


# Answers


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("data/train.jsonl", "jsonl"),
        ("train.jsonl", "jsonl"),
        ("dataset/train.csv", "csv"),
        ("data/train.parquet", "parquet"),
        ("data/train.json", "json"),
    ],
)
def test_answers_are_joined_by_prompt(
    make: Any, tmp_path: Path, rollouts: Rows, name: str, write: str
) -> None:
    prompts = [rollouts(1)[0]["prompt"], "another"]
    getattr(make, write)(name, [{"prompt": p, "answer": i + 7} for i, p in enumerate(prompts)])
    make.completions(1, rollouts(1))
    assert open_run(str(tmp_path)).rollouts.batch(1).gold == ["7", "7", None, None]


def test_an_answer_without_the_system_message(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    prompt = [{"role": "user", "content": rollouts(1)[0]["prompt"]}]
    make.jsonl("data/train.jsonl", [{"prompt": prompt, "solution": "7"}])
    make.completions(1, [chat(row, "Be brief.") for row in rollouts(1)])
    assert open_run(str(tmp_path)).rollouts.batch(1).gold == ["7", "7", None, None]


def test_a_prompt_with_two_answers_has_none(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    first, second = rollouts(1)[0]["prompt"], rollouts(1)[2]["prompt"]
    make.jsonl("data/a.jsonl", [{"question": first, "gold": "1"}, {"question": second, "gold": 5}])
    make.jsonl("data/b.jsonl", [{"question": first, "gold": "2"}])
    make.completions(1, rollouts(1))
    assert open_run(str(tmp_path)).rollouts.batch(1).gold == [None, None, "5", "5"]


def test_answers_inside_the_completions(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    make.jsonl("data/a.jsonl", [{"prompt": rollouts(1)[0]["prompt"], "answer": "from data"}])
    make.completions(1, [{**row, "solution": f"s{i}"} for i, row in enumerate(rollouts(1))])
    batch = open_run(str(tmp_path)).rollouts.batch(1)
    assert batch.gold == ["s0", "s1", "s2", "s3"]
    assert set(batch.rewards) == {"exact"}


def test_data_is_read_with_the_first_batch(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    make.text("data/train.json", "{broken")
    make.completions(1, rollouts(1))
    run = open_run(str(tmp_path))
    assert codes(run) == set()
    assert run.rollouts.batch(1).gold is None
    assert "file_skipped" in codes(run)


# Configuration


def test_settings(make: Any, tmp_path: Path) -> None:
    make.state("trainer_state.json", rows(1, 2), max_steps=50)
    make.json("args.json", {"beta": 0.1, "hub_token": "hf_abc", "nested": {"a": 1}, "w": [1, 2]})
    make.json("config.json", {"model_type": "qwen2", "eos_token_id": 3})
    make.json("generation_config.json", {"eos_token_id": [3, 4]})
    make.text("training_args.bin", b"\x80\x04pickle")
    run = open_run(str(tmp_path))
    values = run.config.values
    assert run.config.number("beta") == 0.1
    assert values["nested.a"] == 1
    assert values["w"] == [1, 2]
    assert values["model.model_type"] == "qwen2"
    assert values["generation.eos_token_id"] == [3, 4]
    assert values["max_steps"] == 50
    assert "hf_abc" not in str(values)
    assert "pickle_skipped" in codes(run)
    assert [s.ref for s in run.config.sources] == [
        "args.json",
        "config.json",
        "generation_config.json",
    ]


def test_settings_from_a_checkpoint_and_from_tensorboard(make: Any, tmp_path: Path) -> None:
    make.state("checkpoint-4/trainer_state.json", rows(1, 4))
    make.json("checkpoint-4/config.json", {"model_type": "old"})
    make.state("checkpoint-8/trainer_state.json", rows(1, 8))
    make.json("checkpoint-8/config.json", {"model_type": "new"})
    texts = {"args/text_summary": '{"beta": 0.5, "num_generations": 4}'}
    make.board("tb/events.out.tfevents.1.h.1.0", [], texts)
    run = open_run(str(tmp_path))
    assert run.config.values["model.model_type"] == "new"
    assert run.config.number("num_generations") == 4


def test_broken_settings_are_notes(make: Any, tmp_path: Path) -> None:
    make.state("trainer_state.json", rows(1, 2))
    make.text("args.json", "[1]")
    make.text("config.yaml", "a: [")
    bomb = "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}\n" for i in range(1, 9)
    )
    make.text(".hydra/config.yaml", bomb)
    run = open_run(str(tmp_path))
    assert sum(note.code == "file_skipped" for note in run.notes) == 3
    assert len(run.config.values) < 100


@pytest.mark.parametrize(
    ("name", "text", "version", "meaning"),
    [
        ("README.md", "# x\n- TRL: 0.26.2\n", "0.26.2", "within-group"),
        ("README.md", "- TRL: 0.21.0\n", "0.21.0", "within-group"),
        ("README.md", "- TRL: 1.16.0\n", "1.16.0", "whole generation batch"),
        ("README.md", "made with TRL: 0.1 by hand", None, "not stated"),
        ("args.json", '{"multi_objective_aggregation": "x"}', None, "whole generation batch"),
        ("wandb/run/files/requirements.txt", "torch==2\ntrl==0.27.0\n", "0.27.0", "whole"),
    ],
)
def test_what_reward_std_means(
    make: Any, tmp_path: Path, name: str, text: str, version: str | None, meaning: str
) -> None:
    history = [{"step": 1, "reward_std": 0.5, "frac_reward_zero_std": 0.0}]
    make.state("trainer_state.json", history)
    make.text(name, text)
    run = open_run(str(tmp_path))
    assert run.version == version
    (note,) = [note for note in run.notes if "`reward_std`" in note.text]
    assert meaning in note.text


@pytest.mark.parametrize(
    ("version", "scale", "meaning"),
    [("0.24.0", "batch", "whole"), ("0.24.0", "none", "within"), ("0.21.0", "batch", "within")],
)
def test_from_0_22_to_0_26_reward_std_follows_the_scaling(
    make: Any, tmp_path: Path, version: str, scale: str, meaning: str
) -> None:
    make.state("trainer_state.json", [{"step": 1, "reward_std": 0.5, "frac_reward_zero_std": 0.0}])
    make.text("README.md", f"- TRL: {version}\n")
    make.text("args.json", json.dumps({"scale_rewards": scale}))
    (note,) = [n for n in open_run(str(tmp_path)).notes if "`reward_std`" in n.text]
    said = {"whole": "the standard deviation over the whole", "within": "the mean of the within"}
    assert said[meaning] in note.text
    assert all(text not in note.text for key, text in said.items() if key != meaning)


def test_ms_swift(make: Any, tmp_path: Path) -> None:
    rows_ = [
        {
            "reward": 0.5 * s,
            "reward_std": 0.1,
            "frac_reward_zero_std": 0.0,
            "global_step/max_steps": f"{s}/1000",
            "elapsed_time": "3m 2s",
            "memory(GiB)": 61.2,
            "train_speed(s/it)": 4.5,
        }
        for s in (10, 20, 30)
    ]
    make.jsonl("logging.jsonl", rows_)
    make.jsonl(
        "completions.jsonl",
        [
            {
                "step": [str(s), str(s)],
                "prompt": ["p", "p"],
                "completion": ["a", "b"],
                "acc_reward": [1.0, 0.0],
                "advantages": [0.5, -0.5],
            }
            for s in (10, 20)
        ],
    )
    make.json("args.json", {"num_generations": 2})
    run = open_run(str(tmp_path))
    assert run.framework == "ms-swift"
    assert run.signals.known["reward_mean"].steps.tolist() == [10, 20, 30]
    assert "train_speed(s/it)" in run.signals.unknown
    assert any("within-group" in note.text for note in run.notes)
    assert run.rollouts.steps.tolist() == [10, 20]
    batch = run.rollouts.batch(20)
    assert list(batch.completions) == ["a", "b"]
    assert batch.rewards["acc_reward"].tolist() == [1.0, 0.0]
    assert batch.advantage is not None


def test_checkpoint_files(make: Any, tmp_path: Path) -> None:
    make.state("checkpoint-4/trainer_state.json", rows(1, 4), global_step=3)
    make.text("checkpoint-4/optimizer.pt", "x")
    make.text("checkpoint-10/model.safetensors", "x")
    run = open_run(str(tmp_path))
    assert [(c.step, c.state_step, c.files) for c in run.checkpoints] == [
        (4, 3, ("optimizer.pt", "trainer_state.json")),
        (10, None, ("model.safetensors",)),
    ]
