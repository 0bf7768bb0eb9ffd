"""Checks that cannot apply: told apart from missing evidence, and asked for by nobody."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.agent.investigate import Finished, investigate
from firstbad.agent.memo.head import first_page
from firstbad.playbooks.applicability import inapplicable, is_optional
from firstbad.playbooks.loader import load
from firstbad.playbooks.model import Inapplicable
from firstbad.playbooks.results import CheckResult, Clause, Verdict
from firstbad.tools.evidence import Evidence

Seen = Callable[..., dict[str, Evidence]]
ENGINE = {"same_tokens", "delivered", "policy_lag", "routing", "engine"}
RULE = Inapplicable.model_validate(
    {"checks": ["a.one"], "when": {"set.engine": "== 0"}, "because": "no engine"}
)


def result(reason: Any = "evidence_missing", observed: float | None = None) -> CheckResult:
    clause = Clause(
        measure="x.n", role="needs", op=">=", limit=1, observed=observed, held=None, evidence=None
    )
    return CheckResult(
        playbook="p",
        layer="a",
        check="one",
        outcome="inconclusive",
        strength=None,
        required=False,
        depends_on=(),
        reason=reason,
        clauses=(clause,),
        evidence=(),
        message="no data",
    )


def test_a_rule_holds_only_where_its_setting_is_known(seen: Seen) -> None:
    assert inapplicable([RULE], [result()], seen(set={"engine": 0})) == {"a.one": "no engine"}
    assert inapplicable([RULE], [result()], seen(set={"engine": 1})) == {}
    assert inapplicable([RULE], [result()], seen(set=None)) == {}


@pytest.mark.parametrize("reason", ["tool_error", "bound_doubtful", "depends_on_open"])
def test_a_check_that_is_open_for_another_reason_is_not_ruled_out(seen: Seen, reason: str) -> None:
    assert inapplicable([RULE], [result(reason)], seen(set={"engine": 0})) == {}


def test_the_first_rule_that_holds_speaks(seen: Seen) -> None:
    second = RULE.model_copy(update={"because": "another"})
    assert inapplicable([RULE, second], [result()], seen(set={"engine": 0})) == {
        "a.one": "no engine"
    }


def test_optional_is_what_has_no_number_at_all_in_a_layer_that_does_without() -> None:
    assert is_optional(result())
    assert not is_optional(result(observed=3.0))
    assert not is_optional(result().model_copy(update={"required": True}))


def found_in(run: Path, complaint: str = "") -> Verdict:
    done = investigate(str(run), complaint, out=run.parent / "incidents")
    assert isinstance(done, Finished)
    return done.verdict


def kinds(verdict: Verdict) -> dict[str, str]:
    return {f"{n.layer}.{n.check}": n.kind for n in verdict.not_checked}


@pytest.fixture
def run(repo: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repo / "tests" / "runs" / "siskin", tmp_path / "run"))


def test_a_run_without_an_engine_lacks_no_evidence_of_one(run: Path) -> None:
    settings = json.loads((run / "args.json").read_text())
    (run / "args.json").write_text(json.dumps({**settings, "use_vllm": False}))
    verdict = found_in(run)
    told = kinds(verdict)
    assert {name for name in ENGINE if told[f"probability.{name}"] == "not_applicable"} == ENGINE
    assert told["records.data_position"] == "not_applicable"
    assert told["accumulation.objective"] == "optional"
    page = first_page(verdict, {})
    (apart, *_) = page.apart
    assert apart.label == "not applicable"
    assert "no separate engine (`use_vllm` is false); " in apart.text
    assert "probability" not in page.unread


def test_an_engine_that_samples_makes_its_checks_count(run: Path) -> None:
    settings = json.loads((run / "args.json").read_text())
    (run / "args.json").write_text(json.dumps({**settings, "use_vllm": True}))
    told = kinds(found_in(run))
    assert {told[f"probability.{name}"] for name in ENGINE} <= {"missing", "optional"}


def test_a_complaint_about_what_cannot_apply_is_answered_so(run: Path) -> None:
    verdict = found_in(run, "the prompts come in another order")
    assert verdict.outcome == "healthy"
    (answer,) = verdict.answers
    assert answer == (
        "The complaint says that prompts come in another order, or not at all; "
        "there is nothing to check: no resume is recorded."
    )


def test_rules_name_checks_that_can_lack_evidence() -> None:
    book = load("crash").playbook
    required = {f"{y.id}.{c.id}" for y in book.layers for c in y.checks if c.passes}
    assert [n for rule in book.inapplicable for n in rule.checks if n in required] == []
