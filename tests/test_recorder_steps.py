from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from firstbad_recorder import Recorder


def arrays(file: Path) -> dict[str, np.ndarray]:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    kinds = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "u1"}
    found = {}
    for name, entry in header.items():
        first, end = (8 + length + at for at in entry["data_offsets"])
        found[name] = np.frombuffer(data[first:end], kinds[entry["dtype"]])
        assert entry["shape"] == [len(found[name])]
    return found


def test_rows_of_numbers_lie_flat_with_their_offsets(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.capture(
            3,
            tokens={
                "token_id": [[1, 2], [3]],
                "logp_new": np.array([-0.5, -1.0]),
                "loss_mask": [[True, False], [True]],
                "entropy": [[0.25, None], [float("inf")]],
                "engine_token_id": [[1], [2, 3, 4]],
            },
        )
    found = arrays(tmp_path / "steps/00000003/tokens.safetensors")
    assert found["token_id"].tolist() == [1, 2, 3]
    assert found["offsets"].tolist() == [0, 2, 3]
    assert found["logp_new"].tolist() == [-0.5, -0.5, -1.0]
    assert found["logp_new"].dtype == np.float64
    assert found["loss_mask"].tolist() == [1, 0, 1]
    assert np.array_equal(found["entropy"], [0.25, np.nan, np.inf], equal_nan=True)
    assert found["engine_offsets"].tolist() == [0, 1, 4]
    step = json.loads((tmp_path / "steps/00000003/step.json").read_text())
    assert step["compute_dtypes"] == {"logp_new": "float64"}
    assert recorder.dropped == 0


def test_an_array_that_does_not_fit_is_left_out_and_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.capture(
        1,
        tokens={
            "token_id": [[1, 2]],
            "logp_new": [[0.1]],
            "logp_old": [["x", "y"]],
            "turn": [[0]] * 2,
        },
    )
    recorder.close()
    assert set(arrays(tmp_path / "steps/00000001/tokens.safetensors")) == {"token_id", "offsets"}
    reasons = json.loads((tmp_path / "run.json").read_text())["dropped_by_reason"]
    assert {reason.split(":")[0] for reason in reasons} == {
        "array `logp_new`", "array `logp_old`", "array `turn`",
    }  # fmt: skip


def test_a_step_is_whole_or_not_there(tmp_path: Path) -> None:
    class Bad:
        def __iter__(self) -> object:
            raise RuntimeError("the loop broke")

    recorder = Recorder(tmp_path)
    recorder.capture(1, rollouts=[{"completion": "a\ud800b" * 3, "reward": float("nan")}])
    recorder.capture(2, rollouts=Bad())  # type: ignore[arg-type]
    recorder.capture(3, numerics={"trail": Bad(), "norms": [{"before_clip": np.float32(2)}]})
    assert [p.name for p in sorted((tmp_path / "steps").iterdir())] == ["00000001", "00000003"]
    row = json.loads((tmp_path / "steps/00000001/rollouts.jsonl").read_text())
    assert row["reward"] == "NaN"
    numerics = json.loads((tmp_path / "steps/00000003/numerics.json").read_text())
    assert numerics["norms"] == [{"before_clip": 2.0}]
    assert recorder.dropped == 1


def test_the_disk_limit_holds_for_steps_too(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, max_bytes=40_000)
    for step in range(100):
        recorder.capture(step, rollouts=[{"completion": "word " * 500}])
    used = sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file())
    assert used < 42_000
    assert recorder.dropped > 80


def test_deliveries_and_probes_are_lines(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.sync(4, version=7, tensors=[{"name": "w", "trainer": "a", "engine": "b"}], time=1)
        recorder.probe(5, "fit", nll_first=2.5, nll_last=np.float64(0.5))
    (sync,) = map(json.loads, (tmp_path / "syncs.jsonl").read_text().splitlines())
    (probe,) = map(json.loads, (tmp_path / "probes.jsonl").read_text().splitlines())
    assert sync.pop("time") > 1.7e9
    assert sync == {
        "step": 4, "version": 7, "tensors": [{"name": "w", "trainer": "a", "engine": "b"}],
    }  # fmt: skip
    assert (probe["probe"], probe["nll_first"], probe["nll_last"]) == ("fit", 2.5, 0.5)


def test_what_the_run_is_told_about_itself_is_kept(tmp_path: Path) -> None:
    with Recorder(
        tmp_path, requested={"lr": 1}, versions={"torch": "2"}, device="x", environment={"A": "1"}
    ):
        pass
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["requested"], run["versions"], run["device"], run["environment"]) == (
        {"lr": 1}, {"torch": "2"}, "x", {"A": "1"},
    )  # fmt: skip


def test_long_answers_of_dialogues_are_whole_and_what_is_cut_is_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, baseline_every=1)
    said = "x" * 50_000 + "the end"
    row = {"sample": "a", "prompt": [{"role": "user", "content": said}], "errors": {"check": said}}
    recorder.capture(1, rollouts=[{**row, "completion": [{"role": "assistant", "content": said}]}])
    assert recorder.dropped == 0
    (line,) = (tmp_path / "steps/00000001/rollouts.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found["completion"][0]["content"] == said
    assert (found["prompt"], found["errors"]) == (row["prompt"], row["errors"])

    longer = "y" * 1_000_001
    recorder.hold(2, rollouts=[{"completion": longer}, {"completion": [{"content": longer}]}])
    recorder.close()
    reasons = json.loads((tmp_path / "run.json").read_text())["dropped_by_reason"]
    assert reasons == {"a text is cut at 1,000,000 characters": 2}
    first, second = (tmp_path / "steps/00000002/rollouts.jsonl").read_text().splitlines()
    assert json.loads(first)["completion"] == longer[:-1]
    assert json.loads(second)["completion"] == [{"content": longer[:-1]}]
