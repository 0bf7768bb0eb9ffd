"""Tables as they come: odd types, columns that stand twice, old line ends, endless integers."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools.readers import open_run
from firstbad.tools.run import Run

SCORES = [0.0, 1.0, 1.0, 0.0]


def note(run: Run, code: str) -> str:
    (text,) = {n.text for n in run.notes if n.code == code}
    return text


def completions(folder: Path, table: Any, step: int = 1) -> Path:
    import pyarrow.parquet as pq

    path = folder / "completions" / f"completions_{step:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return folder


def kinds() -> dict[str, Callable[[], Any]]:
    import pyarrow as pa

    return {
        "double": lambda: pa.array(SCORES),
        "half": lambda: pa.array(np.array(SCORES, np.float16)),
        "decimal": lambda: pa.array([Decimal(str(s)) for s in SCORES], pa.decimal128(10, 3)),
        "dictionary": lambda: pa.array(SCORES).dictionary_encode(),
        "bool": lambda: pa.array([s > 0 for s in SCORES]),
    }


@pytest.mark.parametrize("kind", ["double", "half", "decimal", "dictionary", "bool"])
def test_scores_of_every_number_type(tmp_path: Path, kind: str) -> None:
    import pyarrow as pa

    text = pa.array(["p", "p", "q", "q"]).dictionary_encode()
    large = pa.array(["a", "b", "c", "d"], pa.large_string())
    table = pa.table({"prompt": text, "completion": large, "exact": kinds()[kind]()})
    batch = open_run(str(completions(tmp_path, table))).rollouts.batch(1)
    assert batch.rewards["exact"].tolist() == SCORES
    assert list(batch.completions) == ["a", "b", "c", "d"]
    assert list(batch.prompts) == ["p", "p", "q", "q"]


def test_a_column_without_numbers_does_not_take_the_rows_away(tmp_path: Path) -> None:
    import pyarrow as pa

    columns = {"prompt": ["p"] * 4, "completion": list("abcd"), "exact": SCORES}
    table = pa.table({**columns, "advantage": [[0.5], [1.0], [], None]})
    batch = open_run(str(completions(tmp_path, table))).rollouts.batch(1)
    assert batch.rewards["exact"].tolist() == SCORES
    assert batch.advantage is not None
    assert np.isnan(batch.advantage).all()


def test_a_time_is_no_score(tmp_path: Path) -> None:
    import pyarrow as pa

    when = pa.array([0, 1, 2, 3], pa.timestamp("us", tz="Europe/Berlin"))
    columns = {"prompt": ["p"] * 4, "completion": list("abcd"), "exact": SCORES}
    table = pa.table({**columns, "judged_at": when})
    batch = open_run(str(completions(tmp_path, table))).rollouts.batch(1)
    assert set(batch.rewards) == {"exact"}


@pytest.mark.parametrize("name", ["exact", "completion"])
def test_of_columns_that_stand_twice_the_first_is_read(tmp_path: Path, name: str) -> None:
    import pyarrow as pa

    columns = {"prompt": ["p"] * 4, "completion": list("abcd"), "exact": SCORES}
    table = pa.table(columns).append_column(name, pa.array([9.0] * 4))
    run = open_run(str(completions(tmp_path, table)))
    batch = run.rollouts.batch(1)
    assert list(batch.completions) == ["a", "b", "c", "d"]
    assert batch.rewards["exact"].tolist() == SCORES
    assert f"several columns `{name}`" in note(run, "columns_twice")


def test_metrics_whose_columns_stand_twice(tmp_path: Path, make: Any) -> None:
    make.text("m.csv", "step,reward,reward\n1,0.5,9\n2,0.25,9\n")
    run = open_run(str(tmp_path))
    assert run.signals.known["reward_mean"].values.tolist() == [0.5, 0.25]
    assert "several columns `reward`" in note(run, "columns_twice")


def test_metrics_as_decimals(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    reward = pa.array([Decimal("0.5"), Decimal("0.25")], pa.decimal128(9, 3))
    pq.write_table(pa.table({"step": [1, 2], "reward": reward}), tmp_path / "m.parquet")
    run = open_run(str(tmp_path))
    assert run.signals.known["reward_mean"].values.tolist() == [0.5, 0.25]


@pytest.mark.parametrize("as_text", [str, float])
def test_rollouts_of_one_file_whose_step_is_no_integer(
    tmp_path: Path, make: Any, as_text: Callable[[int], object]
) -> None:
    rows = [
        {"step": as_text(s), "prompt": "p", "completion": f"c{s}{i}", "reward": 0.5}
        for s in (1, 2)
        for i in (0, 1)
    ]
    make.parquet("rollouts.parquet", rows)
    batch = open_run(str(tmp_path)).rollouts.batch(2)
    assert list(batch.completions) == ["c20", "c21"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "trainer_state.json"])
def test_an_endless_integer_is_infinite_and_costs_only_itself(
    tmp_path: Path, make: Any, name: str
) -> None:
    rows = [{"step": s, "reward": 0.5, "num_tokens": 7} for s in (1, 2, 3)]
    path = make.jsonl(name, rows) if name.endswith("l") else make.state(name, rows)
    path.write_text(path.read_text().replace("7", "7" * 6000, 1))
    run = open_run(str(tmp_path))
    assert run.signals.known["reward_mean"].steps.tolist() == [1, 2, 3]
    assert run.signals.known["num_tokens"].nonfinite_steps == (1,)
    assert not [n for n in run.notes if n.code in ("file_cut", "lines_skipped")]


def test_a_value_beyond_float32_has_overflowed(tmp_path: Path, make: Any) -> None:
    make.jsonl("m.jsonl", [{"step": s, "kl": 1e308 if s == 2 else 0.1} for s in (1, 2, 3)])
    kl = open_run(str(tmp_path)).signals.known["kl_ref"]
    assert (kl.steps.tolist(), kl.nonfinite_steps) == ([1, 3], (2,))


def test_line_ends_of_an_old_mac(tmp_path: Path, make: Any) -> None:
    make.text("m.csv", b"step,reward\r1,0.5\r2,0.25\r")
    assert open_run(str(tmp_path)).signals.known["reward_mean"].values.tolist() == [0.5, 0.25]


def test_settings_that_no_trainer_has_are_none(tmp_path: Path, make: Any) -> None:
    make.state("trainer_state.json", [{"step": 1, "reward": 0.5}])
    text = '{"beta": NaN, "learning_rate": 1e300, "max_steps": 1e400, "num_generations": 8}'
    make.text("args.json", text)
    config = open_run(str(tmp_path)).config
    assert [config.number(n) for n in ("beta", "learning_rate", "max_steps")] == [None] * 3
    assert config.number("num_generations") == 8


def test_a_note_is_one_line(tmp_path: Path, make: Any) -> None:
    make.text("m.csv", 'step,"re\nward","x"\n1,0.5,text\n')
    run = open_run(str(tmp_path))
    assert run.notes
    assert not [n for n in run.notes if "\n" in n.text]


@pytest.mark.parametrize("name", ["metrics.parquet", "rollouts.parquet", "rollouts/1.parquet"])
def test_times_that_python_cannot_hold_cost_only_themselves(tmp_path: Path, name: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    when = {
        "zone": pa.array([0, 0], pa.timestamp("us", tz="Nowhere/Land")),
        "far": pa.array([2**62, 2**62], pa.timestamp("us")),
    }
    text = {} if name.startswith("metrics") else {"prompt": ["p", "p"], "completion": ["a", "b"]}
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"step": [1, 1], "reward": [0.5, 0.25], **text, **when}), path)
    run = open_run(str(tmp_path))
    if text:
        batch = run.rollouts.batch(1)
        assert batch.total is not None
        assert batch.total.tolist() == [0.5, 0.25]
    else:
        assert run.signals.known["reward_mean"].values.tolist() == [0.25]
