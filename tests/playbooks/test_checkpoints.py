"""The checkpoint that is named for the rollback: the last good one whose parts fit together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.checkpoints import passed_over, unfit_checkpoints
from firstbad.playbooks.results import Onset
from firstbad.tools.evidence import Evidence, Table
from firstbad.tools.optimizer.moments import READABLE
from firstbad.tools.optimizer.optimizer_state import COUNTS
from synthetic.cases import all_cases

Seen = Callable[..., dict[str, Evidence]]


def table(title: str, *rows: tuple[object, ...]) -> Table:
    columns = tuple(f"c{i}" for i in range(len(rows[0])))
    return Table.model_validate({"title": title, "columns": columns, "rows": rows})


def test_which_checkpoints_are_unfit_and_why(seen: Seen) -> None:
    read = seen(state={}, moments={}, other={})
    rows = {
        "state": table(COUNTS, (20, 20, 20, 20, True), (40, 40, 20, None, False)),
        "moments": table(READABLE, (20, False), (40, False)),
        "other": table("another", (60, False)),
    }
    found = unfit_checkpoints(
        {alias: e.model_copy(update={"tables": (rows[alias],)}) for alias, e in read.items()}
    )
    assert found == {
        20: "its moments do not hold",
        40: "its model is of step 40, its optimizer is of step 20",
    }


@pytest.mark.parametrize(
    ("named", "first_bad", "over"),
    [
        ("checkpoint-20", 61, ("checkpoint-40: b",)),
        (None, 61, ("checkpoint-10: a", "checkpoint-40: b")),
        (None, None, ()),
        ("checkpoint-20", 30, ()),
    ],
)
def test_only_what_lies_between_is_passed_over(
    named: str | None, first_bad: int | None, over: tuple[str, ...]
) -> None:
    onset = Onset(last_good=None, first_bad=first_bad, signal="loss")
    assert passed_over({10: "a", 40: "b", 80: "c"}, onset, named) == over


def test_the_rollback_passes_over_a_checkpoint_that_was_saved_wrong(tmp_path: Path) -> None:
    run = all_cases()["o17"].write(tmp_path / "run")
    done = investigate(str(run), out=tmp_path / "incidents")
    assert isinstance(done, Finished)
    assert done.verdict.resume_from == "checkpoint-20"
    (told,) = done.verdict.passed_over
    assert told == (
        "checkpoint-40: its model is of step 40, its optimizer is of step 20, "
        "its schedule is of step 40"
    )
    memo = next((tmp_path / "incidents").rglob("memo.md")).read_text(encoding="utf-8")
    assert "the last whole checkpoint before step 45; passed over: checkpoint-40" in " ".join(
        memo.replace("`", "").split()
    )


@pytest.mark.parametrize(
    ("without", "told"),
    [
        ([40], "from checkpoint-20, the last whole checkpoint before step 45; passed over"),
        ([20], "take the weights of checkpoint-20 alone, whose optimizer then begins anew"),
        ([20, 40, 60], "from checkpoint-40, the last checkpoint before step 45"),
    ],
)
def test_a_checkpoint_without_its_optimizer_is_not_whole(
    tmp_path: Path, without: list[int], told: str
) -> None:
    """In a run that saves optimizers; one that never does is not blamed for it."""
    run = all_cases()["o17"].write(tmp_path / "run")
    for step in without:
        (run / f"checkpoint-{step}" / "optimizer.pt").unlink()
    done = investigate(str(run), out=tmp_path / "incidents")
    assert isinstance(done, Finished)
    assert done.verdict.findings[0].cause == "opt.lr_jump"
    memo = next((tmp_path / "incidents").rglob("memo.md")).read_text(encoding="utf-8")
    assert told in " ".join(memo.replace("`", "").split())
