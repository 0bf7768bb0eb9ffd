"""`--code PATH`: places of the loss code beside what the run shows, never in its place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firstbad.agent import cli
from firstbad.agent.incident import Incident, listing
from firstbad.agent.investigate import Finished, investigate
from firstbad.agent.memo.code_rows import in_code
from firstbad.agent.verify import verify
from firstbad.playbooks.results import Verdict
from firstbad.tools.code import PLACES
from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Table

OVERFLOW = "import torch\n\nratio = torch.exp(logp - old_logp)\nratio = ratio.clamp(max=10)\n"
OTHER = "lp = torch.log(torch.softmax(x, -1) + 1e-8)\n"


def investigated(repo: Path, name: str, code: Path | None = None) -> tuple[Incident, Verdict]:
    kept = None if code is None else str(code)
    done = investigate(str(repo / "tests" / "runs" / name), code=kept)
    assert isinstance(done, Finished)
    return done.incident, done.verdict


def code_evidence(incident: Incident) -> dict[str, Any]:
    texts = [json.loads(incident.evidence_text(i)) for i in incident.evidence_ids()]
    found: dict[str, Any] = next(e for e in texts if e["tool"] == "read_loss_code")
    return found


def test_a_place_of_the_same_cause_supports_the_finding(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "my_loss.py").write_text(OVERFLOW)
    incident, verdict = investigated(repo, "kestrel", tmp_path)
    leading = verdict.findings[0]
    assert leading.cause == "num.exp_overflow"
    read = code_evidence(incident)["id"]
    assert read in leading.supports
    _, without = investigated(repo, "kestrel")
    assert without.findings[0].confidence == leading.confidence
    assert without.findings[0].claim == leading.claim
    memo = incident.markdown_file.read_text()
    assert "my_loss.py:3" in memo
    assert "if this is what ran" in memo
    assert "torch.exp(logp - old\\_logp)" in memo or "torch.exp(logp - old_logp)" in memo
    assert verify(incident.id).differences == ()


def test_a_place_of_another_cause_supports_nothing(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "my_loss.py").write_text(OTHER)
    incident, verdict = investigated(repo, "kestrel", tmp_path)
    assert verdict.findings[0].cause == "num.exp_overflow"
    assert code_evidence(incident)["id"] not in verdict.findings[0].supports
    memo = incident.markdown_file.read_text()
    assert "if this is what ran" not in memo
    assert "1 place that can break numbers, of which nothing here shows that it did" in memo


def rows(where: str, *causes: str, places: int = 1) -> dict[str, str]:
    """The rows of places of `num.exp_overflow` beside findings of these causes."""
    read = SimpleNamespace(
        id="E9",
        tool="read_loss_code",
        metrics={"n_places": places},
        tables=[
            Table(
                title=PLACES,
                columns=("cause", "at", "code", "why", "shown"),
                rows=tuple(
                    ("num.exp_overflow", f"sub/loss.py:{7 + i}", "exp(x)", "no limit", "Inf")
                    for i in range(places)
                ),
            )
        ],
    )
    trail = SimpleNamespace(
        id="E4",
        tool="read_trail",
        metrics={"n": 1},
        quote=f"in the forward pass ({where}).",
        tables=[],
    )
    found: Any = [SimpleNamespace(cause=cause) for cause in causes]
    evidence: Any = {"E4": trail, "E9": read}
    return {row.label: row.text for row in in_code(found, evidence)}


def test_a_place_is_compared_with_every_finding() -> None:
    told = rows("", "mask.padding", "num.exp_overflow")
    assert list(told) == ["in the code"]
    assert told["in the code"].startswith(
        "if this is what ran, as `num.exp_overflow`, also found, would have it, `sub/loss.py:7`"
    )


@pytest.mark.parametrize("causes", [(), ("mask.padding",), ("num.exp_overflow",)])
def test_a_place_that_the_record_names_is_told_as_such(causes: tuple[str, ...]) -> None:
    told = rows("/srv/code/loss.py:7", *causes)
    assert list(told) == ["in the code"]
    assert (
        "`sub/loss.py:7` `exp(x)`: the first value that is not finite arose there (E4)"
        in (told["in the code"])
    )
    assert "if this is what ran" not in told["in the code"]


@pytest.mark.parametrize("where", ["/srv/loss.py:77", "/srv/other_loss.py:7", ""])
def test_another_line_or_file_is_no_support(where: str) -> None:
    assert rows(where, "mask.padding")["in the code"] == (
        "1 place that can break numbers, of which nothing here shows that it did: "
        "`sub/loss.py:7` (`num.exp_overflow`) (E9)"
    )
    assert rows(where, places=2)["in the code"].startswith(
        "2 places that can break numbers, of which nothing here shows that they did: "
    )


def test_code_alone_fails_nothing(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "my_loss.py").write_text(OVERFLOW + OTHER)
    _, without = investigated(repo, "siskin")
    incident, verdict = investigated(repo, "siskin", tmp_path)
    assert verdict.outcome == without.outcome
    assert verdict.findings == without.findings
    assert [(r.id, r.outcome) for r in verdict.layers] == [
        (r.id, r.outcome) for r in without.layers
    ]
    assert verify(incident.id).differences == ()


def test_code_that_was_changed_is_a_difference(repo: Path, tmp_path: Path) -> None:
    path = tmp_path / "my_loss.py"
    path.write_text(OVERFLOW)
    incident, _ = investigated(repo, "kestrel", path)
    path.write_text(OTHER)
    assert verify(incident.id).differences
    path.unlink()
    with pytest.raises(UserError, match="there is no file or folder"):
        verify(incident.id)


def test_a_resumed_incident_keeps_its_code(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "my_loss.py").write_text(OVERFLOW)
    incident, verdict = investigated(repo, "kestrel", tmp_path)
    shutil.rmtree(incident.evidence_folder)
    incident.evidence_folder.mkdir()
    again = investigate(resume=incident.id)
    assert isinstance(again, Finished)
    assert again.verdict.findings == verdict.findings
    assert code_evidence(incident)["metrics"]["n_places"] == 1
    with pytest.raises(UserError, match="keeps the code"):
        investigate(resume=incident.id, code=str(tmp_path))


@pytest.mark.parametrize("command", [["investigate"], ["tools", "run", "read_loss_code"]])
@pytest.mark.parametrize("path", ["nowhere", "", "a\nb", "\x1b[31m"])
def test_a_path_that_is_not_there(
    repo: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    path: str,
) -> None:
    run = str(repo / "tests" / "runs" / "siskin")
    assert cli.main([*command, run, "--code", str(tmp_path / "none" / path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("firstbad: --code: there is no file or folder")
    assert "\x1b" not in said
    assert said.count("\n") == 1
    assert not listing()


def test_the_tool_by_itself(repo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_loss.py").write_text(OVERFLOW)
    run = str(repo / "tests" / "runs" / "siskin")
    assert cli.main(["tools", "run", "read_loss_code", run, "--code", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "my_loss.py:3" in said
    assert "exp(100) = inf" in said


def test_code_is_shown_and_never_taken_as_markup(repo: Path, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>.py"
    code = "r = torch.exp(logp - old_logp['</td><script>alert(1)</script>`**x**`|'])\n"
    (tmp_path / name).write_text(code)
    incident, _ = investigated(repo, "kestrel", tmp_path)
    html = incident.html_file.read_text()
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;.py:1" in html
    assert verify(incident.id).differences == ()
