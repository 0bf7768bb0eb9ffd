"""CSV, JSON lines, JSON and Parquet: what goes wrong in files that people send."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools.errors import UserError
from firstbad.tools.readers import open_run
from firstbad.tools.run import Run

Rows = Callable[[int], list[dict[str, Any]]]


def codes(run: Run) -> set[str]:
    return {note.code for note in run.notes}


def steps_of(run: Run) -> list[int]:
    return [int(step) for step in run.signals.steps]


# Metrics


@pytest.mark.parametrize(
    "name",
    [
        "step",
        "Step",
        "global_step",
        "_step",
        "train/global_step",
        "training/global_step",
        "iteration",
        "iter",
        "update",
        "train_step",
    ],
)
def test_names_of_the_step(make: Any, name: str) -> None:
    path = make.csv("m.csv", [{name: s, "reward": s} for s in (10, 20)])
    run = open_run(str(path))
    assert steps_of(run) == [10, 20]
    assert set(run.signals.unknown) == set()


def test_the_trainers_step_goes_before_the_call_counter_of_wandb(make: Any) -> None:
    rows = [
        {"_step": 12, "train/global_step": 1, "train/reward": 0.5},
        {"_step": 13, "profiling/x": 3.0},
        {"_step": 24, "train/global_step": 2, "train/reward": 0.75},
    ]
    run = open_run(str(make.jsonl("history.jsonl", rows)))
    assert steps_of(run) == [1, 2]
    assert any("1 row without a step" in note.text for note in run.notes)


def test_a_step_out_of_how_many(make: Any) -> None:
    rows = [{"global_step/max_steps": f"{s}/1000", "reward": 1} for s in (40, 80)]
    assert steps_of(open_run(str(make.jsonl("logging.jsonl", rows)))) == [40, 80]


def test_unsorted_steps(make: Any) -> None:
    path = make.csv("m.csv", [{"step": s, "reward": s} for s in (3, 1, 2, 5, 4, 2.0)])
    run = open_run(str(path))
    assert steps_of(run) == [1, 2, 3, 4, 5]
    assert run.signals.known["reward_mean"].values.tolist() == [1, 2, 3, 4, 5]
    assert {"unsorted", "duplicates"} <= codes(run)
    assert run.events == ()


def test_a_log_that_goes_on_after_a_resume(make: Any) -> None:
    rows = [{"step": s, "reward": 0} for s in range(1, 9)]
    rows += [{"step": s, "reward": 1} for s in range(5, 12)]
    run = open_run(str(make.jsonl("m.jsonl", rows)))
    assert [(event.kind, event.step) for event in run.events] == [("resume", 5)]
    assert run.signals.known["reward_mean"].values.tolist() == [0] * 4 + [1] * 7
    assert "duplicates" in codes(run)


def test_missing_steps_and_mixed_intervals(make: Any) -> None:
    missing = [s for s in range(1, 40) if s not in (20, 21, 30)]
    run = open_run(str(make.csv("a.csv", [{"step": s, "reward": 1} for s in missing])))
    assert [n.text for n in run.notes if n.code == "steps_missing"] == [
        "`a.csv`: 3 steps missing, the first after 19"
    ]
    mixed = [*range(1, 20), *range(20, 200, 10)]
    run = open_run(str(make.csv("b.csv", [{"step": s, "reward": 1} for s in mixed])))
    assert any("changes at step 20, to 10" in note.text for note in run.notes)
    regular = [1, *range(10, 100, 10), 97]
    run = open_run(str(make.csv("c.csv", [{"step": s, "reward": 1} for s in regular])))
    assert codes(run) == set()


def test_rows_without_any_step_are_numbered(make: Any) -> None:
    run = open_run(str(make.csv("m.csv", [{"reward": 1}, {"reward": 2}])))
    assert steps_of(run) == [1, 2]
    assert "step_unknown" in codes(run)


@pytest.mark.parametrize("word", ["NaN", "nan", "Infinity", "-inf", "-Infinity", "INF"])
def test_words_that_are_no_finite_number(make: Any, word: str) -> None:
    for path in (
        make.text("m.csv", f"step,reward\n1,0.5\n2,{word}\n3,\n4,None\n"),
        make.jsonl("m.jsonl", [{"step": 1, "reward": 0.5}, {"step": 2, "reward": word}]),
    ):
        reward = open_run(str(path)).signals.known["reward_mean"]
        assert reward.steps.tolist() == [1]
        assert reward.nonfinite_steps == (2,)


def test_bare_constants_in_json(make: Any) -> None:
    path = make.text("m.jsonl", '{"step": 1, "loss": NaN}\n{"step": 2, "loss": -Infinity}\n')
    assert open_run(str(path)).signals.known["loss"].nonfinite_steps == (1, 2)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_nothing_but_nan(make: Any, kind: str) -> None:
    rows = [{"step": s, "reward": float("nan"), "loss": float("inf")} for s in (1, 2)]
    run = open_run(str(getattr(make, kind)(f"m.{kind}", rows)))
    for name in ("reward_mean", "loss"):
        assert len(run.signals.known[name].values) == 0
        assert run.signals.known[name].nonfinite_steps == (1, 2)


def test_null_is_not_nan(make: Any) -> None:
    rows = [{"step": 1, "reward": None}, {"step": 2, "reward": float("nan")}]
    for kind in ("jsonl", "parquet"):
        run = open_run(str(getattr(make, kind)(f"m.{kind}", rows)))
        assert run.signals.known["reward_mean"].nonfinite_steps == (2,)


@pytest.mark.parametrize(
    ("encoding", "noted"),
    [
        ("utf-8", False),
        ("utf-8-sig", False),
        ("utf-16", True),
        ("utf-16-le", True),
        ("utf-16-be", True),
        ("cp1252", True),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_encodings(make: Any, encoding: str, noted: bool, kind: str) -> None:
    text = {
        "csv": "step,reward,größe\r\n1,0.5,3\r\n",
        "jsonl": '{"step": 1, "reward": 0.5, "größe": 3}\r\n',
    }[kind]
    run = open_run(str(make.text(f"m.{kind}", text.encode(encoding))))
    assert run.signals.known["reward_mean"].at(1) == 0.5
    assert set(run.signals.unknown) == {"größe"}
    assert ("encoding" in codes(run)) == noted


def test_bytes_of_no_encoding(make: Any) -> None:
    run = open_run(str(make.text("m.csv", b"step,reward,x\x81\xff\n1,0.5,1\n")))
    assert run.signals.known["reward_mean"].at(1) == 0.5
    assert any("replaced" in note.text for note in run.notes)


def test_a_cut_off_last_line(make: Any) -> None:
    run = open_run(str(make.text("m.csv", "step,reward,loss\n1,0.5,1\n2,0.5,1\n3,0.")))
    assert steps_of(run) == [1, 2]
    assert "line_cut" in codes(run)
    run = open_run(str(make.text("m.jsonl", '{"step": 1, "reward": 1}\n{"step": 2, "rew')))
    assert steps_of(run) == [1]
    assert "line_cut" in codes(run)


def test_broken_lines_in_the_middle(make: Any) -> None:
    text = '{"step": 1, "reward": 1}\n{oops\n[1]\n\n{"step": 2, "reward": 1}\n'
    run = open_run(str(make.text("m.jsonl", text)))
    assert steps_of(run) == [1, 2]
    assert any("2 lines are no JSON objects, the first is line 2" in n.text for n in run.notes)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters(make: Any, delimiter: str) -> None:
    text = delimiter.join(("step", "reward")) + "\n" + delimiter.join(("1", "0.5")) + "\n"
    assert open_run(str(make.text("m.csv", text))).signals.known["reward_mean"].at(1) == 0.5


def test_cells_with_line_breaks_and_uneven_rows(make: Any) -> None:
    text = 'step,note,reward\n1,"a\nb, ""c""",0.5\n2,x,0.5,9,9\n3,y\n4,z,1\n'
    run = open_run(str(make.text("m.csv", text)))
    assert steps_of(run) == [1, 2, 4]
    assert {"lines_ragged", "columns_left"} <= codes(run)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.csv", "", "`m.csv` is empty"),
        ("m.csv", "\n \n", "is empty"),
        ("m.csv", "step,reward\n", "has no rows"),
        ("m.csv", "1,2\n3,4\n", "has no header line"),
        ("m.csv", "step,name\n1,x\n", "no column of numbers"),
        ("m.jsonl", "", "is empty"),
        ("m.jsonl", "not json\n", "has no rows"),
        ("m.jsonl", '{"step": 1, "name": "x"}\n', "no column of numbers"),
        ("m.json", "{", "is not JSON"),
        ("m.json", "3", "holds no table"),
        ("m.json", "[" * 100_000, "is not JSON"),
        ("m.parquet", "", "is empty"),
        ("m.parquet", "PAR1 and so on", "no readable Parquet"),
    ],
)
def test_files_that_hold_nothing(make: Any, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        open_run(str(make.text(name, text)))
    assert "\n" not in str(caught.value)


def test_a_file_of_another_kind(make: Any) -> None:
    with pytest.raises(UserError, match="not a run that can be read"):
        open_run(str(make.text("m.xlsx", "x")))
    with pytest.raises(UserError, match="is not .csv or .tsv"):
        open_run("csv:" + str(make.text("m.xlsx", "x")))


@pytest.mark.parametrize(
    "value",
    [
        [{"step": 1, "reward": 0.5}],
        {"data": [{"step": 1, "reward": 0.5}]},
        {"columns": ["step", "reward"], "data": [[1, 0.5]]},
        {"step": [1], "reward": [0.5]},
        {"log_history": [{"step": 1, "reward": 0.5}], "global_step": 1, "epochs": [{"a": 1}]},
    ],
)
def test_shapes_of_json(make: Any, value: object) -> None:
    run = open_run(str(make.json("m.json", value)))
    assert run.signals.known["reward_mean"].at(1) == 0.5


def test_nested_rows(make: Any) -> None:
    rows = [{"step": 3, "data": {"critic/score/mean": 0.5, "a": {"b": {"c": 2}}, "list": [1]}}]
    run = open_run(str(make.jsonl("m.jsonl", rows)))
    assert run.framework == "verl"
    assert run.signals.known["reward_mean"].at(3) == 0.5
    assert set(run.signals.unknown) == {"a/b/c"}
    assert any("list" in note.text for note in run.notes if note.code == "columns_left")


def test_one_metric_a_row(make: Any) -> None:
    rows = [{"key": k, "value": v, "step": 1} for k, v in (("reward", 0.5), ("loss", 2.0))]
    signals = open_run(str(make.csv("m.csv", rows))).signals
    assert signals.known["reward_mean"].at(1) == 0.5
    assert signals.known["loss"].at(1) == 2.0


def test_several_rows_of_one_step_are_merged(make: Any) -> None:
    rows = [{"step": 1, "loss/mean": 0.5, "mismatch_kl/all/mean": 0.1}, {"step": 1, "x": 2.0}]
    signals = open_run(str(make.jsonl("metrics.jsonl", rows))).signals
    assert signals.known["loss"].at(1) == 0.5
    assert signals.unknown["x"].at(1) == 2.0


def test_an_export_of_the_page_of_wandb(make: Any) -> None:
    names = [f"run - train/reward{end}" for end in ("", "__MIN", "__MAX")]
    run = open_run(str(make.csv("e.csv", [{"Step": 1, **dict.fromkeys(names, 3)}])))
    assert run.signals.known["reward_mean"].at(1) == 3
    assert not run.signals.unknown
    assert "sampled" in codes(run)


def test_a_huge_number_and_a_strange_step(make: Any) -> None:
    rows = '{"step": 1, "reward": 1' + "0" * 400 + '}\n{"step": 1e999, "reward": 1}\n'
    run = open_run(str(make.text("m.jsonl", rows + '{"step": true, "reward": 2}\n')))
    assert run.signals.known["reward_mean"].at(1) == 2  # JSON's true is read as 1


# Folders


def test_a_folder_of_metrics_files(make: Any, tmp_path: Path) -> None:
    make.csv("a.csv", [{"step": s, "reward": 1} for s in (1, 2)])
    make.jsonl("b.jsonl", [{"step": s, "reward": 2, "loss": 1} for s in (2, 3)])
    make.csv("eval/metrics.csv", [{"step": 2, "reward": 9}])
    make.jsonl("data/train.jsonl", [{"prompt": "a", "completion": "b", "step": 1}])
    make.json("config.json", {"step": 5, "reward": 7, "model_type": "x"})
    make.text("broken.parquet", "")
    run = open_run(f"csv:{tmp_path}")
    assert run.signals.known["reward_mean"].values.tolist() == [1, 2, 2]
    assert run.signals.known["eval/reward_mean"].at(2) == 9
    assert not run.rollouts
    assert run.config.values["model.model_type"] == "x"
    assert any("broken.parquet" in note.text for note in run.notes)
    assert run.ref == f"csv:{tmp_path}"


def test_only_an_empty_parquet_file(make: Any, tmp_path: Path) -> None:
    make.text("m.parquet", "")
    for ref in (f"parquet:{tmp_path}", str(tmp_path), str(tmp_path / "m.parquet")):
        with pytest.raises(UserError):
            open_run(ref)
    with pytest.raises(UserError, match="`m.parquet` is empty"):
        open_run(f"parquet:{tmp_path}")


def test_a_link_out_of_the_folder(make: Any, tmp_path: Path) -> None:
    make.csv("outside.csv", [{"step": 1, "reward": 100}])
    make.csv("run/m.csv", [{"step": 1, "reward": 1}])
    (tmp_path / "run" / "z.csv").symlink_to(tmp_path / "outside.csv")
    run = open_run(str(tmp_path / "run"))
    assert run.signals.known["reward_mean"].at(1) == 1
    assert "file_refused" in codes(run)


# Rollouts


def test_verl_dumps(make: Any, tmp_path: Path) -> None:
    for step in (1, 2, 10):
        make.jsonl(
            f"rollouts/{step}.jsonl",
            [
                {
                    "input": f"user\n{prompt}\nassistant\n",
                    "output": f"It is {prompt}{i}.",
                    "gts": prompt,
                    "score": float(i),
                    "acc": i,
                    "step": step,
                    "uid": f"3f_{prompt}_0_{i}",
                }
                for prompt in "ab"
                for i in (0, 1)
            ],
        )
    make.jsonl("metrics.jsonl", [{"step": 1, "data": {"critic/score/mean": 0.5}}])
    run = open_run(str(tmp_path))
    assert run.framework == "verl"
    assert run.rollouts.steps.tolist() == [1, 2, 10]
    batch = run.rollouts.batch(10)
    assert batch.group.tolist() == [0, 0, 1, 1]
    assert batch.group_source == "key"
    assert batch.gold == ["a", "a", "b", "b"]
    assert batch.total is not None
    assert batch.total.tolist() == [0, 1, 0, 1]
    assert set(batch.rewards) == {"acc"}


def test_a_uid_of_each_row_is_no_group(make: Any) -> None:
    rows = [{"step": 1, "prompt": p, "output": "x y", "uid": f"u{i}"} for i, p in enumerate("aab")]
    batch = open_run(str(make.jsonl("r.jsonl", rows))).rollouts.batch(1)
    assert (batch.group.tolist(), batch.group_source) == ([0, 0, 1], "prompt")


def test_group_size_from_the_settings(make: Any, tmp_path: Path) -> None:
    rows = [{"step": 1, "prompt": "same", "completion": f"c {i}"} for i in range(4)]
    make.jsonl("rollouts.jsonl", rows)
    make.text("config.yaml", "actor_rollout_ref: {rollout: {n: 2}}\n")
    batch = open_run(str(tmp_path)).rollouts.batch(1)
    assert (batch.group.tolist(), batch.group_source) == ([0, 0, 1, 1], "position")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_column_that_is_known(make: Any, kind: str) -> None:
    rows = [
        {
            "global_step": 4,
            "question": "q",
            "response": f"r {i}",
            "ground_truth": "g",
            "reward": 0.5 * i,
            "format_reward": i,
            "rewards/exact": 0.25 * i,
            "advantages": 0.5,
            "finish_reason": "stop",
            "completion_tokens": 7 + i,
            "group_id": "g1",
            "entropy": 0.5,
            "host": "h",
        }
        for i in range(3)
    ]
    run = open_run(str(getattr(make, kind)(f"r.{kind}", rows)))
    batch = run.rollouts.batch(4)
    assert list(batch.prompts) == ["q"] * 3
    assert batch.gold == ["g"] * 3
    assert batch.finish == ["stop"] * 3
    assert batch.n_tokens is not None
    assert batch.n_tokens.tolist() == [7, 8, 9]
    assert batch.total is not None
    assert batch.total.tolist() == [0, 0.5, 1]
    assert {name: v.tolist() for name, v in batch.rewards.items()} == {
        "format_reward": [0, 1, 2],
        "exact": [0, 0.25, 0.5],
    }
    assert batch.group_source == "key"
    assert any("entropy, host" in note.text for note in run.notes)


def test_rewards_in_a_dict_and_messages(make: Any) -> None:
    rows = [
        {
            "step": 1,
            "messages": [{"role": "user", "content": "q"}],
            "completion": [{"role": "assistant", "content": f"a{i}"}],
            "rewards": {"exact": 1.0, "style": None} if i else {"exact": 0.0},
            "score": 0.5,
        }
        for i in (0, 1)
    ]
    batch = open_run(str(make.jsonl("r.jsonl", rows))).rollouts.batch(1)
    assert list(batch.completions) == ["a0", "a1"]
    assert batch.rewards["exact"].tolist() == [0, 1]
    assert np.isnan(batch.rewards["style"]).all()
    assert batch.total is not None
    assert batch.total.tolist() == [0.5, 0.5]


def test_answers_that_are_numbers(make: Any, rollouts: Rows) -> None:
    rows = [{"step": 1, "prompt": "1+1", "completion": "2"}]
    run = open_run(str(make.csv("r.csv", rows)))
    assert list(run.rollouts.batch(1).completions) == ["2"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_ten_million_characters(make: Any, kind: str) -> None:
    rows = [{"step": 1, "prompt": "p", "completion": c} for c in ("x" * 10_000_000, "short one")]
    run = open_run(str(getattr(make, kind)(f"r.{kind}", rows)))
    assert [len(text) for text in run.rollouts.batch(1).completions] == [200_000, 9]
    assert "text_cut" in codes(run)


def test_lone_surrogates_are_replaced(make: Any) -> None:
    path = make.text("r.jsonl", '{"step": 1, "prompt": "p", "completion": "a \\ud83d b"}\n')
    text = open_run(str(path)).rollouts.batch(1).completions[0]
    assert text == "a ? b"
    assert json.loads(json.dumps(text).encode()) == text


def test_rollouts_without_a_step(make: Any) -> None:
    run = open_run(str(make.jsonl("r.jsonl", [{"prompt": "p", "completion": "c d"}])))
    assert run.rollouts.steps.tolist() == [0]
    assert "step_unknown" in codes(run)


def test_files_of_ranks_are_not_taken_for_steps(make: Any, tmp_path: Path) -> None:
    for rank in range(5):
        rows = [{"step": s, "prompt": "p", "completion": f"c {rank}"} for s in (0, 1)]
        make.jsonl(f"rollouts_{rank}.jsonl", rows)
    run = open_run(str(tmp_path))
    assert run.rollouts.steps.tolist() == [0, 1]
    assert len(run.rollouts.batch(1)) == 5


def test_a_cut_off_line_of_rollouts(make: Any, rollouts: Rows) -> None:
    path = make.jsonl("r.jsonl", [*rollouts(1), *rollouts(2)])
    path.write_bytes(path.read_bytes()[:-30])
    run = open_run(str(path))
    assert len(run.rollouts.batch(2)) == 3
    assert "line_cut" in codes(run)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_rollouts_in_other_encodings(make: Any, rollouts: Rows, encoding: str) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rollouts(1))
    batch = open_run(str(make.text("r.jsonl", text.encode(encoding)))).rollouts.batch(1)
    assert list(batch.completions) == [row["completion"] for row in rollouts(1)]


def test_evaluation_rollouts_are_left_out(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    make.jsonl("rollouts/1.jsonl", rollouts(1))
    make.jsonl("val_rollouts/1.jsonl", rollouts(2))
    run = open_run(str(tmp_path))
    assert len(run.rollouts.batch(1)) == 4
    assert any("evaluation" in note.text for note in run.notes)


def test_answers_beside_rollouts(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    make.jsonl("rollouts.jsonl", rollouts(1))
    make.jsonl("data/train.jsonl", [{"prompt": rollouts(1)[0]["prompt"], "answer": "7"}])
    assert open_run(str(tmp_path)).rollouts.batch(1).gold == ["7", "7", None, None]


def test_parquet_with_many_row_groups(make: Any, tmp_path: Path, rollouts: Rows) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row for step in range(1, 7) for row in rollouts(step)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet", row_group_size=5)
    run = open_run(str(tmp_path / "r.parquet"))
    assert run.rollouts.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert [len(batch) for batch in run.rollouts.batches()] == [4] * 6


def test_a_file_that_vanishes_is_a_note(make: Any, rollouts: Rows) -> None:
    path = make.jsonl("r.jsonl", rollouts(1))
    run = open_run(str(path))
    path.unlink()
    assert len(run.rollouts.batch(1)) == 0
    assert "file_skipped" in codes(run)


def test_a_first_row_of_many_lines(make: Any) -> None:
    text = "line\n" * 100_000
    rows = [{"step": 1, "prompt": "p", "completion": text}, {"step": 1, "completion": "b c"}]
    batch = open_run(str(make.csv("r.csv", rows))).rollouts.batch(1)
    assert len(batch) == 2


def test_files_of_several_folders(make: Any, tmp_path: Path) -> None:
    make.csv("a/metrics.csv", [{"step": 1, "reward": 1}])
    make.csv("b/metrics.csv", [{"step": 2, "reward": 1}])
    run = open_run(str(tmp_path))
    assert any("2 folders are read as one: a, b" in note.text for note in run.notes)


def test_values_nested_beyond_reason(make: Any) -> None:
    deep = "[" * 900 + "]" * 900
    names = ("prompt", "completion", "answer", "uid", "finish")
    row = '{"step": 1, ' + ", ".join(f'"{name}": {deep}' for name in names) + "}"
    batch = open_run(str(make.text("r.jsonl", row + "\n"))).rollouts.batch(1)
    assert list(batch.completions) == [""]
    run = open_run(str(make.text("m.jsonl", f'{{"step": 1, "a": {deep}, "reward": 1}}\n')))
    assert run.signals.known["reward_mean"].at(1) == 1


def chat(step: int, *, last: str = "assistant", **more: Any) -> dict[str, Any]:
    turns = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": f"add {step}"},
        {"role": last, "content": f"it is {step}"},
    ]
    return {"step": step, "messages": turns, **more}


def test_a_chat_whose_last_turn_is_the_answer_is_a_rollout(tmp_path: Path, make: Any) -> None:
    make.jsonl("rollouts.jsonl", [chat(s, reward=0.5 * i) for s in (1, 2) for i in (0, 1)])
    batch = open_run(str(tmp_path)).rollouts.batch(2)
    assert list(batch.prompts) == ["be brief\nadd 2"] * 2
    assert list(batch.completions) == ["it is 2"] * 2
    assert batch.total is not None
    assert batch.total.tolist() == [0, 0.5]


def test_of_several_answers_the_last_turn_is_the_completion(tmp_path: Path, make: Any) -> None:
    row = chat(1, reward=1.0)
    row["messages"] += [{"role": "tool", "content": "4"}, {"role": "assistant", "content": "four"}]
    make.jsonl("rollouts.jsonl", [row])
    batch = open_run(str(tmp_path)).rollouts.batch(1)
    assert list(batch.completions) == ["four"]
    assert batch.prompts[0].endswith("it is 1\n4")


def test_chats_that_are_no_rollouts(tmp_path: Path, make: Any) -> None:
    make.jsonl("metrics.jsonl", [{"step": 1, "reward": 0.5}])
    make.jsonl("asked.jsonl", [chat(1, last="user")])
    data = chat(1)
    del data["step"]
    make.jsonl("sft.jsonl", [data])
    assert not open_run(str(tmp_path)).rollouts


def test_rows_that_add_to_a_step_do_not_repeat_it(make: Any) -> None:
    rows = [{"step": s, "epoch": 0.5, "reward": s, "kl": None} for s in range(1, 6)]
    summary = {"step": 5, "epoch": 0.5, "train_runtime": 1.5, "kl": 0.5}
    run = open_run(str(make.jsonl("m.jsonl", [*rows, summary])))
    assert "duplicates" not in codes(run)
    run = open_run(str(make.jsonl("again.jsonl", [*rows, summary, {"step": 5, "kl": 0.1}])))
    assert "duplicates" in codes(run)
