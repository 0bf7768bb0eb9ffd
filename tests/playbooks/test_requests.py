"""Requests: only what is missing, and only settings of the framework that wrote the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from firstbad.playbooks.loader import lint, load, shipped
from firstbad.playbooks.model import Ask, Check, Playbook
from firstbad.playbooks.requests import requests_of
from firstbad.tools.evidence import Evidence

# Settings of TRL 1.16 that a text may name, and the names under which firstbad reads settings.
TRL = {
    "log_completions", "log_unique_prompts", "num_completions_to_print", "logging_steps",
    "vllm_importance_sampling_correction",
    "gradient_accumulation_steps", "per_device_train_batch_size", "training_args.bin",
}  # fmt: skip
READ = {
    "gradient_accumulation_steps", "num_iterations", "beta", "loss_type", "scale_rewards",
    "use_vllm", "logprob_diff_mean", "advantage", "loss", "ratio_max", "ratio_min",
}  # fmt: skip
RECORD = Path(__file__).parents[2] / "recorder" / "FORMAT.md"
READ |= set(re.findall(r"`([a-z_]+)`", RECORD.read_text(encoding="utf-8")))
VERL = re.compile(r"(actor_rollout_ref|algorithm|data|trainer)\.[a-z_.]+")

MakeSeen = Callable[..., dict[str, Evidence]]


def asks() -> Iterator[tuple[str, str, str]]:
    """Place, framework and text of everything that a shipped playbook may ask for."""
    for name in shipped():
        for layer in load(name).playbook.layers:
            for check in layer.checks:
                found = [check.request] if isinstance(check.request, str) else check.request
                for ask in found:
                    need = ask if isinstance(ask, str) else ask.need
                    texts = {"default": need} if isinstance(need, str) else need
                    for framework, text in texts.items():
                        yield f"{layer.id}.{check.id}", framework, text


@pytest.mark.parametrize(("place", "framework", "text"), list(asks()))
def test_a_text_names_only_settings_of_its_framework(place: str, framework: str, text: str) -> None:
    quoted = {name.partition("=")[0] for name in re.findall(r"`([\w.]+(?:=[^`]*)?)`", text)}
    if framework == "verl":
        assert all(VERL.fullmatch(name) for name in quoted), place
        assert not quoted & TRL
    elif framework == "record":
        assert quoted <= READ | {"baseline_every", "generated"}
    else:
        assert quoted <= (TRL if framework == "trl" else READ), place
        assert not VERL.search(text.replace("data.train", "")), place
    assert "TRL" not in text.replace("trl", "")


def make_check(request: Any) -> Check:
    gate = [{"strength": "direct", "needs": {"rows.n": ">= 1"}}]
    made = {"id": "rows", "asks": "Whole?", "evidence": {"rows": "check_rows"}, "gate": gate}
    return Check.model_validate({**made, "request": request, "command": "see RUN"})


ASKS: list[dict[str, Any]] = [
    {"unless": {"stock.loss": ">= 12"}, "need": {"default": "a loss", "trl": "loss, in TRL"}},
    {"unless": {"stock.rows": ">= 1"}, "need": {"default": "rows", "verl": ""}},
    {"need": "a dump"},
]


def needs(seen: dict[str, Evidence], framework: str, request: Any = ASKS) -> list[str]:
    found = requests_of(
        make_check(request), seen, layer="records", dialects=(framework,), run="a b"
    )
    assert all(r.command == "see 'a b'" for r in found)
    return [r.need for r in found]


def test_only_what_is_missing_is_asked_for(seen: MakeSeen) -> None:
    assert needs(seen(stock={"loss": 0, "rows": 0}), "trl") == ["loss, in TRL", "rows"]
    assert needs(seen(stock={"loss": 0, "rows": 9}), "slime") == ["a loss"]
    assert needs(seen(stock={"loss": 99, "rows": 9}), "trl") == ["a dump"]
    assert needs(seen(stock=None), "trl") == ["loss, in TRL", "rows"], "unknown is not there"


def test_what_every_step_of_a_short_run_has_is_not_asked_for(seen: MakeSeen) -> None:
    few = {"stock.steps": "< 20", "stock.lacking": "<= 0"}
    asks = [{**ASKS[0], "in_every_step": few}, {**ASKS[1], "in_every_step": few}, ASKS[2]]

    def asked(**stock: int) -> dict[str, str]:
        made, figures = make_check(asks), seen(stock={"loss": 5, "rows": 0, **stock})
        longer = "more steps than {stock.steps}"
        found = requests_of(
            made, figures, layer="records", dialects=("trl",), run="r", longer=longer
        )
        return {r.need: r.command for r in found}

    assert asked(steps=5, lacking=0) == {"more steps than 5": "see NEW_RUN"}
    both = {"loss, in TRL": "see r", "rows": "see r"}
    assert asked(steps=5, lacking=1) == asked(steps=30, lacking=0) == both
    assert asked(steps=5, lacking=0, loss=12, rows=1) == {"a dump": "see r"}


def test_where_a_framework_has_nothing_to_set_the_rest_is_asked_for(seen: MakeSeen) -> None:
    assert needs(seen(stock={"loss": 99, "rows": 0}), "verl") == ["a dump"]


def test_a_plain_text_is_for_every_run(seen: MakeSeen) -> None:
    assert needs(seen(), "verl", "bring rows") == ["bring rows"]
    assert needs(seen(), "trl", "") == []


def test_lint_refuses_unknown_frameworks_and_measures() -> None:
    playbook = load("crash").playbook
    (layer, *rest) = playbook.layers
    request = (
        Ask(need={"default": "a", "tlr": "b"}),
        Ask(need={"trl": "b"}, unless={"stock.nothing": ">= 1"}),  # type: ignore[dict-item]
    )
    check = layer.checks[0].model_copy(update={"request": request})
    changed = layer.model_copy(update={"checks": (check,)})
    problems = "\n".join(lint(Playbook(**{**dict(playbook), "layers": (changed, *rest)})))
    assert "no framework `tlr`; nearest: trl" in problems
    assert "no `default`" in problems
    assert "`take_stock` does not measure `nothing`" in problems


def test_what_only_a_new_run_writes_names_that_run() -> None:
    made = make_check([{"need": "a new loss", "new_run": True}, {"need": "a copied file"}])
    found = requests_of(made, {}, layer="records", dialects=("trl",), run="runs/old one")
    assert {r.need: r.command for r in found} == {
        "a new loss": "see NEW_RUN",
        "a copied file": "see 'runs/old one'",
    }
