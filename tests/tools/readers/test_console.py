"""Console logs: the step in progress, resumes, and bounds on what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.errors import UserError
from firstbad.tools.readers import open_run
from firstbad.tools.run import Event, Run


def read(make: Any, tmp_path: Path, text: str, name: str = "train.log") -> Run:
    make.text(name, text)
    return open_run(f"trl:{tmp_path}")


def told(run: Run, *kinds: str) -> list[tuple[int | None, str]]:
    return [(e.step, e.text) for e in run.events if e.kind in kinds]


def test_a_warning_belongs_to_the_step_that_is_printed_next(make: Any, tmp_path: Path) -> None:
    run = read(
        make,
        tmp_path,
        "00:00:01 start segment 1/1: max_steps=3 lr=0.1 resume=no\n"
        "00:00:01 step 1/3 loss=0.5 reward=1e-3\n"
        "00:00:02 WARNING verifier: deadline exceeded (48 items)\n"
        "00:00:02 step 2/3 loss=nan reward=.5\n"
        "00:00:03 ERROR worker died\n",
    )
    assert told(run, "warning") == [(2, "00:00:02 WARNING verifier: deadline exceeded (48 items)")]
    assert told(run, "error") == [(3, "00:00:03 ERROR worker died")]
    assert told(run, "resume", "config_change") == []
    assert run.signals.known["reward_mean"].at(1) == 0.001
    assert run.signals.known["loss"].nonfinite_steps == (2,)
    assert "console" in run.notes[0].text


def test_nothing_is_in_progress_after_the_end(make: Any, tmp_path: Path) -> None:
    text = "step 1/2 a=1\nstep 2/2 a=1\nstep 2/2 \ntraining finished\nUserWarning: leaked\n"
    run = read(make, tmp_path, text)
    assert told(run, "warning") == [(2, "UserWarning: leaked")]


def test_a_traceback_is_one_error(make: Any, tmp_path: Path) -> None:
    run = read(
        make,
        tmp_path,
        "step: 4 loss=1\nstep: 6 loss=1\n"
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n'
        "    main()\n"
        '  File "reward.py", line 9, in score\n'
        "    x = float(y)\n"
        "ValueError: could not convert\n",
    )
    ((step, text),) = told(run, "error")
    assert step == 8  # the distance of steps goes on
    assert text == 'ValueError: could not convert (File "reward.py", line 9, in score)'


def test_a_traceback_without_an_end(make: Any, tmp_path: Path) -> None:
    run = read(make, tmp_path, "step 1/2 a=1\nTraceback (most recent call last):\n  File x\n")
    assert len(told(run, "error")) == 1


def test_a_resumed_segment(make: Any, tmp_path: Path) -> None:
    run = read(
        make,
        tmp_path,
        "start segment 1/2: max_steps=9 lr=0.1 resume=no\n"
        "step 1/9 reward=1\nstep 2/9 reward=2\nstep 3/9 reward=3\n"
        "start segment 2/2: max_steps=9 lr=0.3 resume=out/checkpoint-2\n"
        "WARNING new\n"
        "step 3/9 reward=5\nstep 4/9 reward=6\n",
    )
    resume = "start segment 2: max_steps=9 lr=0.3 resume=out/checkpoint-2"
    assert told(run, "resume") == [(3, resume)]
    assert told(run, "config_change") == [(3, "lr: 0.1 -> 0.3")]
    assert told(run, "warning") == [(3, "WARNING new")]
    assert run.signals.known["reward_mean"].at(3) == 5


def test_a_first_segment_that_resumes(make: Any, tmp_path: Path) -> None:
    text = "start segment 1/1: lr=0.1 resume=checkpoint-60\nstep 61/90 reward=1\n"
    assert [s for s, _ in told(read(make, tmp_path, text), "resume")] == [61]


def test_steps_that_go_back(make: Any, tmp_path: Path) -> None:
    text = "".join(f"step {s}/9 reward=1\n" for s in (1, 2, 3, 4, 3, 4, 5))
    assert told(read(make, tmp_path, text), "resume") == [(3, "step goes back from 4 to 3")]


def test_lines_of_several_processes_are_no_resumes(make: Any, tmp_path: Path) -> None:
    text = "".join(f"step {s}/90 reward=1\nstep {s - 1}/90 reward=1\n" for s in range(1, 40))
    assert told(read(make, tmp_path, text), "resume") == []


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': '0.5', 'grad_norm': '0.25', 'reward': '1.5', 'epoch': '0.01'}",
        "{'loss': 0.5, 'grad_norm': 0.25, 'reward': 1.5, 'epoch': 0.01}",
        "INFO {'loss': nan, 'reward': 1.5, 'name': 'x'}",
    ],
)
def test_dicts_of_hugging_face_are_counted(make: Any, tmp_path: Path, line: str) -> None:
    make.json("args.json", {"logging_steps": 5, "max_steps": 20})
    bars = "".join(
        f"{s * 25}%|##  | {s * 5}/20 [00:01<00:03, 2it/s]\rwarm Map: 3/7 [00:01<00:00]\n{line}\n"
        for s in (1, 2, 3)
    )
    run = read(make, tmp_path, bars + "UserWarning: odd\n")
    assert run.signals.known["reward_mean"].steps.tolist() == [5, 10, 15]
    assert told(run, "resume") == []
    assert told(run, "warning") == [(20, "UserWarning: odd")]


def test_dicts_after_a_resume(make: Any, tmp_path: Path) -> None:
    text = "  Continuing training from global step 60\n{'loss': '0.5', 'reward': '1.5'}\n"
    run = read(make, tmp_path, text + "{'eval_reward': '2', 'eval_loss': '1'}\n")
    assert run.signals.known["reward_mean"].steps.tolist() == [61]
    assert run.signals.known["eval/reward_mean"].at(61) == 2
    assert [s for s, _ in told(run, "resume")] == [61]


def test_verl_lines(make: Any, tmp_path: Path) -> None:
    line = (
        "(TaskRunner pid=12) step:{} - critic/score/mean:0.5 - actor/lr:np.float64(1e-06) - "
        "val-core/a@b:c/mean@4:0.25 - training/global_step:{}\n"
    )
    run = read(make, tmp_path, "".join(line.format(s, s) for s in (1, 2)))
    assert run.framework == "verl"
    assert run.signals.known["reward_mean"].steps.tolist() == [1, 2]
    assert run.signals.known["learning_rate"].at(2) == 1e-6
    assert run.signals.unknown["val-core/a@b:c/mean@4"].at(1) == 0.25


@pytest.mark.parametrize(
    "line",
    [
        "saving the model at step 60",
        "WARNING reward 0 at step 12/20",
        "see step 3 of the guide",
        "decode step 5: kv=3",
    ],
)
def test_other_lines_with_a_step_are_no_metrics(make: Any, tmp_path: Path, line: str) -> None:
    run = read(make, tmp_path, f"step 1/20 reward=1\n{line}\nstep 2/20 reward=1\n")
    assert run.signals.steps.tolist() == [1, 2]


def test_only_so_many_events_are_kept(make: Any, tmp_path: Path) -> None:
    text = "step 1/2 a=1\n" + "WARNING w\n" * 5000 + "ERROR e\n" + "x" * 100_000 + "\n"
    run = read(make, tmp_path, text + "ERROR " + "y" * 9000 + "\n")
    assert len(run.events) <= 2000
    assert [text[:8] for _, text in told(run, "error")] == ["ERROR e", "ERROR yy"]
    assert max(len(event.text) for event in run.events) <= 500
    assert any("4,000 further" in note.text for note in run.notes)


def test_terminal_escapes_are_removed(make: Any, tmp_path: Path) -> None:
    run = read(make, tmp_path, "step 1/2 a=1\n\x1b[31mERROR\x1b[0m \x07red\x1b]0;t\x07\n")
    ((_, text),) = told(run, "error")
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.startswith("ERROR red")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings_of_windows(make: Any, tmp_path: Path, encoding: str) -> None:
    text = "step 1/2 reward=1\r\nWARNING façade\r\nstep 2/2 reward=1\r\n"
    run = read(make, tmp_path, text.encode(encoding))  # type: ignore[arg-type]
    assert told(run, "warning") == [(2, "WARNING façade")]


def test_a_text_file_is_a_log_only_with_metric_lines(make: Any, tmp_path: Path) -> None:
    make.text("train.log", "step 1/2 reward=1\n")
    make.text("notes.txt", "WARNING: this is only my opinion\n")
    make.text("requirements.txt", "step 9/9 a=1\n")
    run = read(make, tmp_path, "step 1/2 reward=1\nWARNING real\n", "more.txt")
    assert [e.source for e in run.events] == ["more.txt"]


def test_a_log_of_errors_alone_has_no_steps(make: Any, tmp_path: Path) -> None:
    make.text("train.log", "step 1/2 reward=1\n")
    run = read(make, tmp_path, "CUDA out of memory. Tried\n", "err.out")
    assert run.events == (Event("error", None, "CUDA out of memory. Tried", "err.out"),)


def test_a_traceback_that_another_process_prints_into(make: Any, tmp_path: Path) -> None:
    run = read(
        make,
        tmp_path,
        "step 1/9 a=1\n(Worker pid=7) Traceback (most recent call last):\n"
        '(Worker pid=7)   File "w.py", line 2\nstep 2/9 a=2\n(Worker pid=7) KeyError\n',
    )
    assert told(run, "error") == [(2, 'Traceback (most recent call last) (File "w.py", line 2)')]
    assert run.signals.unknown["a"].steps.tolist() == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-02T03:04:05Z [INFO] step 7 | loss: 0.5 | reward: 1.25",
        "INFO trainer.py: Step 7: loss=0.5, reward=1.25, eta=0:12:33",
        "Epoch 1/3 step 7/90 loss=0.5 reward=1.25 lr=1e-06",
        "global step 7 {'loss': 0.5, 'reward': 1.25}",
        "\u2728 Global step 7: {'loss': 0.5, 'reward': 1.25}",
    ],
)
def test_forms_of_metric_lines(make: Any, tmp_path: Path, line: str) -> None:
    run = read(make, tmp_path, line + "\n")
    assert run.signals.known["reward_mean"].at(7) == 1.25
    assert run.signals.known["loss"].at(7) == 0.5
    assert "eta" not in run.signals.unknown


def test_long_lines_take_no_time(make: Any, tmp_path: Path) -> None:
    nasty = ["a" * 25_000, "{'a': " * 4_000, "step 1 " + "b=" * 12_000, "x." * 12_000, "(" * 25_000]
    run = read(make, tmp_path, "step 1/2 reward=1\n" + "\n".join(nasty * 3))
    assert run.last_step == 1


def test_a_log_alone_is_a_run(make: Any, tmp_path: Path) -> None:
    path = make.text("run.log", "step 1/2 reward=0.5\nWARNING odd\nstep 2/2 reward=0.75\n")
    for ref in (str(path), f"log:{path}", str(tmp_path), f"log:{tmp_path}"):
        run = open_run(ref)
        assert run.ref.startswith("log:")
        assert run.signals.known["reward_mean"].steps.tolist() == [1, 2]
        assert told(run, "warning") == [(2, "WARNING odd")]
        assert [source.ref for source in run.sources] == ["run.log"]


def test_a_text_without_metric_lines_is_no_run(make: Any, tmp_path: Path) -> None:
    path = make.text("notes.txt", "dear diary\nERROR\n")
    for ref in (str(path), f"log:{tmp_path}", str(tmp_path)):
        with pytest.raises(UserError, match="metric lines"):
            open_run(ref)
