"""What may not matter does not, through the whole walk: outcome, cause and first bad step stay."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.agent.investigate import Finished, investigate

HERON = Path(__file__).parents[2] / "agent" / "demo_runs" / "heron"
EACH = 10
"""Steps in a file, where rollouts are split."""
Verdict = tuple[str, str | None, int | None]


def verdict(folder: Path, out: Path) -> Verdict:
    done = investigate(str(folder), out=out)
    assert isinstance(done, Finished)
    leading = done.verdict.leading
    cause = None if leading is None else leading.cause
    return done.verdict.outcome, cause, done.verdict.first_bad.first_bad


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    return verdict(HERON, tmp_path_factory.mktemp("whole"))


@cache
def tables() -> tuple[Any, ...]:
    import pyarrow.parquet as pq

    return tuple(pq.read_table(path) for path in sorted((HERON / "completions").iterdir()))


def rewritten(folder: Path, change: Callable[[Any], Any]) -> None:
    """Every step's rollouts, changed."""
    import pyarrow.parquet as pq

    shutil.copytree(HERON, folder)
    for path, table in zip(sorted((folder / "completions").iterdir()), tables(), strict=True):
        pq.write_table(change(table), path, compression="zstd")


def mixed(folder: Path) -> None:
    """Samples in another order inside their groups of eight."""
    rng = np.random.default_rng(5)
    order = np.concatenate([8 * g + rng.permutation(8) for g in range(tables()[0].num_rows // 8)])
    rewritten(folder, lambda table: table.take(order[: table.num_rows]))


def renamed(folder: Path) -> None:
    """Prompts that say the same in another way, here and in the data."""
    import pyarrow as pa

    def say(value: Any) -> Any:
        if isinstance(value, list):
            return [{**m, "content": say(m["content"])} for m in value]
        return f"Task: {value}"

    def change(table: Any) -> Any:
        at = table.schema.get_field_index("prompt")
        prompts = [say(value) for value in table.column("prompt").to_pylist()]
        return table.set_column(at, "prompt", pa.array(prompts, table.schema.field(at).type))

    rewritten(folder, change)
    for path in (folder / "data").glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        told = [{**row, "prompt": say(row["prompt"])} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in told))


def apart(folder: Path) -> None:
    """The same run without its rollouts, for which the caller finds another form."""
    shutil.copytree(HERON, folder, ignore=shutil.ignore_patterns("completions"))


def one_file(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    apart(folder)
    pq.write_table(pa.concat_tables(tables()), folder / "rollouts.parquet", compression="zstd")


def several_files(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    apart(folder)
    for first in range(0, len(tables()), EACH):
        part = pa.concat_tables(tables()[first : first + EACH])
        pq.write_table(part, folder / f"rollouts-{first // EACH}.parquet", compression="zstd")


def a_file_a_step(folder: Path) -> None:
    apart(folder)
    (folder / "rollouts").mkdir()
    for table in tables():
        rows = table.to_pylist()
        lines = "".join(json.dumps(row, default=str) + "\n" for row in rows)
        (folder / "rollouts" / f"{rows[0]['step']}.jsonl").write_text(lines)


FORMS = {
    "samples in another order": mixed,
    "other prompts": renamed,
    "rollouts in one file": one_file,
    "rollouts in several files": several_files,
    "a file of lines a step": a_file_a_step,
}


@pytest.mark.parametrize("name", FORMS)
def test_the_verdict_stays(name: str, whole: Verdict, tmp_path: Path) -> None:
    FORMS[name](tmp_path / "run")
    assert whole == ("incident", "reward.verifier_outage", 66)
    assert verdict(tmp_path / "run", tmp_path / "out") == whole
