"""Evidence and small playbooks in memory, and a walk over them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firstbad.agent.files import write_atomic
from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.conclude import Ask, conclude
from firstbad.playbooks.loader import Loaded
from firstbad.playbooks.model import Check, Playbook
from firstbad.playbooks.results import (
    CheckResult,
    LayerResult,
    PlaybookRef,
    Usage,
    Verdict,
    Waiver,
)
from firstbad.playbooks.walk import OPEN, judge_layer, layer_outcome
from firstbad.tools.evidence import Evidence, Table
from plurals_in import false_plurals
from synthetic.cases import all_cases

RUNS = Path(__file__).parent.parent / "runs"


def make_evidence(alias: str, metrics: Any, number: int = 1, **fields: Any) -> Evidence:
    """Measured numbers, `None` for no data, or a text for a tool that broke."""
    status = "measured" if isinstance(metrics, Mapping) else "error" if metrics else "no_data"
    made: dict[str, Any] = {
        "id": f"E{number}",
        "tool": f"read_{alias}",
        "tool_version": "0.1.0",
        "args": {},
        "status": status,
        "metrics": dict(metrics) if isinstance(metrics, Mapping) else None,
        "error": metrics if isinstance(metrics, str) else None,
        "summary": f"{alias} was read" if status == "measured" else f"no {alias} to be read",
        "signal": f"signal of {alias}",
    }
    return Evidence(**{**made, **fields})


def make_seen(**readings: Any) -> dict[str, Evidence]:
    """Evidence by alias: `seen(rows={"bad": 1}, judge=None)`."""
    return {
        alias: value if isinstance(value, Evidence) else make_evidence(alias, value, number)
        for number, (alias, value) in enumerate(readings.items(), 1)
    }


def make_check(*gate: Mapping[str, Any], **fields: Any) -> Check:
    """A check with the gate's alternatives."""
    names = {m.split(".")[0] for a in gate for b in a.values() if isinstance(b, dict) for m in b}
    made: dict[str, Any] = {
        "id": "rows",
        "asks": "Are the rows whole?",
        "evidence": {name: f"read_{name}" for name in sorted(names)},
        "gate": [{"strength": "direct", **a} for a in gate],
    }
    return Check.model_validate({**made, **fields})


LAYERS: list[dict[str, Any]] = [
    {
        "id": "window",
        "number": "0",
        "asks": "Which step was first?",
        "checks": [
            {
                "id": "onset",
                "asks": "Which signal moved?",
                "evidence": {"onset": "find_first_bad"},
                "gate": [{"strength": "proxy", "needs": {"onset.n_signals": ">= 1"}}],
                "request": "any metrics",
            }
        ],
    },
    {
        "id": "records",
        "number": "0.5",
        "asks": "Are the records what they claim?",
        "checks": [
            {
                "id": "rows",
                "asks": "Are the rows whole?",
                "evidence": {"rows": "read_rows"},
                "gate": [
                    {
                        "strength": "direct",
                        "needs": {"rows.n": ">= 1"},
                        "fail_if": {"rows.bad": "> 0"},
                    }
                ],
                "points_to": [{"cause": "id.rows", "claim": "{rows.bad} rows are broken"}],
                "request": "rows with keys",
                "command": "firstbad runs show RUN",
                "decides": "whether rows are whole",
            },
            {
                "id": "means",
                "asks": "Are logged means means?",
                "passes": False,
                "evidence": {"means": "read_means"},
                "gate": [{"strength": "direct", "fail_if": {"means.off": "> 0"}}],
                "points_to": [{"cause": "id.rows", "claim": "means are off by {means.off:2}"}],
                "request": "never asked for, since it decides nothing",
            },
        ],
    },
    {
        "id": "probability",
        "number": "1",
        "asks": "Can probabilities be compared?",
        "checks": [
            {
                "id": "same",
                "asks": "Do both sides agree?",
                "depends_on": ["records"],
                "evidence": {"same": "read_same"},
                "gate": [
                    {
                        "strength": "direct",
                        "needs": {"same.n": ">= 1"},
                        "fail_if": {"same.gap": "> 1"},
                    },
                    {"strength": "declared", "needs": {"same.declared": "== 1"}},
                ],
                "points_to": [
                    {"cause": "prob.weight_sync", "claim": "the sides differ by {same.gap}"}
                ],
                "request": "log-probs of both sides",
            }
        ],
    },
    {
        "id": "optimizer",
        "number": "4",
        "asks": "Are the steps too bold?",
        "checks": [
            {
                "id": "rate",
                "asks": "Does the rate follow its schedule?",
                "evidence": {"rate": "read_rate"},
                "gate": [
                    {
                        "strength": "direct",
                        "needs": {"rate.n": ">= 1"},
                        "fail_if": {"rate.jump": "> 1.5"},
                    }
                ],
                "points_to": [{"cause": "opt.lr_jump", "claim": "the rate jumps {rate.jump}-fold"}],
            },
            {
                "id": "size",
                "asks": "Does KL run away?",
                "depends_on": ["probability"],
                "passes": False,
                "evidence": {"size": "read_size"},
                "gate": [{"strength": "proxy", "fail_if": {"size.kl": "> 0.5"}}],
                "points_to": [{"cause": "opt.step_too_large", "claim": "KL is {size.kl}"}],
            },
        ],
    },
    {
        "id": "reward",
        "number": "5",
        "asks": "Does the reward measure it?",
        "checks": [
            {
                "id": "judged",
                "asks": "Does a judge agree?",
                "evidence": {"judge": "read_judge"},
                "gate": [
                    {
                        "strength": "direct",
                        "needs": {"judge.n": ">= 1"},
                        "fail_if": {"judge.wrong": "> 0.1"},
                    }
                ],
                "points_to": [
                    {
                        "cause": "reward.verifier_outage",
                        "when": {"judge.constant": "== 1"},
                        "claim": "{judge.wrong:%} are scored wrong",
                        "contradicted_if": {"judge.one_sided": "< 0.9"},
                        "ruled_out": {
                            "too hard: {judge.right:%} are right": {"judge.right": "> 0.2"},
                            "collapse": {"judge.text": "== 0"},
                        },
                    },
                    {"cause": "reward.false_negative", "claim": "some are scored wrong"},
                ],
                "notes": [
                    {"when": {"judge.right": "== 1"}, "say": "All {judge.n} answers are right."}
                ],
                "request": "gold answers",
            }
        ],
    },
]

HEALTHY: dict[str, Any] = {
    "onset": {"n_signals": 3, "is_onset": False, "is_steady": True, "first_bad_step": None},
    "rows": {"n": 9, "bad": 0},
    "means": {"off": 0.0},
    "same": {"n": 9, "gap": 0.1},
    "rate": {"n": 9, "jump": 1.0},
    "size": {"kl": 0.01},
    "judge": {"n": 9, "wrong": 0.0, "right": 0.6},
}


def make_book(layers: Sequence[Mapping[str, Any]] = LAYERS, **fields: Any) -> Playbook:
    """The small playbook; what is given replaces what it has."""
    made: dict[str, Any] = {
        "name": "small",
        "title": "A small playbook",
        "window": [
            {"kind": "onset", "when": {"onset.is_onset": "== 1"}},
            {"kind": "steady", "when": {"onset.is_steady": "== 1"}},
        ],
        "outcome_holds": {"onset.end_over_best": ">= 0.75"},
        "layers": layers,
        "leads_to": [{"cause": "opt.lr_jump", "to": ["probability", "records"]}],
    }
    return Playbook.model_validate({**made, **fields})


def walk(
    book: Playbook, seen: Mapping[str, Evidence], waivers: Mapping[str, str]
) -> tuple[tuple[LayerResult, ...], tuple[CheckResult, ...]]:
    """Judge layer by layer, as the agent does: a layer that has not passed closes the way."""
    layers: dict[str, LayerResult] = {}
    checks: list[CheckResult] = []
    way_open = True
    for layer in book.layers:
        results = judge_layer(layer, seen, playbook=book.name, layers=layers, checks=checks)
        checks += results
        reason = waivers.get(layer.id)
        waiver = None if reason is None else Waiver(layer=layer.id, reason=reason)
        layers[layer.id] = layer_outcome(layer, results, way_open=way_open, waiver=waiver)
        way_open = way_open and layers[layer.id].outcome in OPEN
    return tuple(layers.values()), tuple(checks)


def make_verdict(
    *,
    book: Playbook | None = None,
    waive: Mapping[str, str] | None = None,
    checkpoints: Sequence[int] = (),
    noticed_step: int | None = None,
    symptoms: tuple[str, ...] = (),
    **readings: Any,
) -> Verdict:
    """The verdict on a healthy run in which some readings are replaced."""
    book = book or make_book()
    seen = make_seen(**{**HEALTHY, **readings})
    if not isinstance(onset := seen["onset"], Evidence) or onset.tool == "read_onset":
        seen["onset"] = onset.model_copy(update={"tool": "find_first_bad"})
    waivers = waive or {}
    layers, checks = walk(book, seen, waivers)
    return conclude(
        Loaded(book, PlaybookRef(name=book.name, digest="sha256:0123456789abcdef"), "small.yaml"),
        ask=Ask(
            incident="I7",
            run="csv:heron",
            framework="csv",
            noticed_step=noticed_step,
            symptoms=symptoms,
        ),
        layers=layers,
        checks=checks,
        seen=seen,
        waivers=[Waiver(layer=k, reason=v) for k, v in waivers.items()],
        checkpoint_steps=checkpoints,
        usage=Usage(tool_calls=7),
        versions={"firstbad": "0.1.0"},
    )


def make_moves(*moves: tuple[str, int, str], every: int = 1) -> Table:
    """The window's table of signals that moved: signal, first bad step, manner.

    A value is logged every so many steps.
    """
    return Table(
        title="signals that moved",
        columns=(
            "signal",
            "last good",
            "first bad",
            "manner",
            "before",
            "after",
            "band widths",
            "sets the window",
        ),
        rows=tuple(
            (name, step - every, step, manner, 1.0, 0.0, 9.0, name != "step_time")
            for name, step, manner in moves
        ),
    )


@pytest.fixture(scope="session")
def seen() -> Callable[..., dict[str, Evidence]]:
    """Evidence by alias: `seen(rows={"bad": 1}, judge=None, lost="ValueError: x")`."""
    return make_seen


@pytest.fixture(scope="session")
def check() -> Callable[..., Check]:
    """A check by its gate: `check({"needs": {...}, "fail_if": {...}}, id="rows")`."""
    return make_check


@pytest.fixture(scope="session")
def small() -> SimpleNamespace:
    """The small playbook, and what walks over it."""
    return SimpleNamespace(
        LAYERS=LAYERS,
        HEALTHY=HEALTHY,
        book=make_book,
        walk=walk,
        evidence=make_evidence,
        moves=make_moves,
    )


@pytest.fixture(scope="session")
def verdict() -> Callable[..., Verdict]:
    """The verdict on a healthy run with some readings replaced: `verdict(rows={"bad": 2})`."""
    return make_verdict


@pytest.fixture(scope="session")
def verdict_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Verdict]:
    """The verdict on a run by name: recorded, or `synthetic/NAME`, which is made on the spot.

    A synthetic run is walked with the complaint of its case, a recorded one without any; each
    once, for all files of tests and all workers.
    """
    own = tmp_path_factory.mktemp("walked")
    shared = own
    if "PYTEST_XDIST_WORKER" in os.environ:  # the folder above is that of this run of the tests
        shared = tmp_path_factory.getbasetemp().parent / "verdicts"
        shared.mkdir(exist_ok=True)

    @cache
    def verdict(run: str) -> Verdict:
        kind, _, name = run.rpartition("/")
        told = shared / f"{kind}-{name}.json"
        if told.exists():
            return Verdict.model_validate_json(told.read_bytes())
        path = all_cases()[name].write(own / name) if kind else RUNS / name
        complaint = all_cases()[name].complaint if kind else ""
        done = investigate(str(path), complaint, out=own / "incidents")
        assert isinstance(done, Finished)
        assert not false_plurals(done.incident.markdown_file.read_text(encoding="utf-8"))
        write_atomic(told, done.verdict.model_dump_json())
        return done.verdict

    return verdict
