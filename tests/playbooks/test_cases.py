"""Every case named in a playbook is a run with an expected outcome, and is run here.

A plain name is a recorded run in tests/runs; `synthetic/NAME` is made on the spot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firstbad.playbooks.causes import causes
from firstbad.playbooks.loader import load, shipped
from firstbad.playbooks.results import Verdict
from synthetic.cases import all_cases

RUNS = Path(__file__).parent.parent / "runs"
CASES = [
    (name, f"{layer.id}.{check.id}", run, expected)
    for name in shipped()
    for layer in load(name).playbook.layers
    for check in layer.checks
    for run, expected in check.cases.items()
]
BOUNDED = [
    (name, f"{layer.id}.{check.id}", frozenset(check.cases.values()))
    for name in shipped()
    for layer in load(name).playbook.layers
    for check in layer.checks
    if any(alternative.fail_if for alternative in check.gate)
]
# Outcome, leading cause and first bad step of every recorded run: what was done to each stands in
# tests/runs/README.md, and the two are compared by eye when a run is added.
LEADING = {
    "avocet": ("incident", "grad.missing_microbatch", 7),
    "badger": ("incident", "opt.lr_jump", 62),
    "bison": ("incident", "mask.prompt", 1),
    "crane": ("incident", "collapse.all_right", 1),
    "curlew": ("incident", "mask.padding", 40),
    "dipper": ("incident", "infra.resume", 41),
    "dunlin": ("incident", "prob.processed_logprobs", 60),
    "egret": ("incident", "cfg.completion_cap", 1),
    "eland": ("incident", "prob.old_logprob_source", 41),
    "ferret": ("incident", "id.rows", 50),
    "finch": ("incident", "opt.data_reuse", 17),
    "garfish": ("healthy", None, None),
    "gecko": ("incident", "grad.frozen", 2),
    "gopher": ("incident", "num.clamp_in_objective", 30),
    "gull": ("incident", "data.sampling", 45),
    "hare": ("incident", "opt.state_mismatch", 61),
    "hyena": ("incident", "opt.step_too_large", 4),
    "ibex": ("incident", "prob.positions", 1),
    "jackal": ("incident", "reward.hack_length", 1),
    "kestrel": ("incident", "num.exp_overflow", 16),
    "kudu": ("incident", "prob.tokenization", 25),
    "linnet": ("incident", "reward.hack_format", 1),
    "lynx": ("incident", "prob.weight_sync", 100),
    "magpie": ("incident", "reward.hack_format", 41),
    "mamba": ("incident", "num.clamp_in_objective", 3),
    "mink": ("incident", "opt.state_mismatch", 61),
    "mole": ("incident", "collapse.all_wrong", 1),
    "moose": ("incident", "reward.phase_change", 60),
    "ocelot": ("incident", "grad.frozen", 61),
    "osprey": ("incident", "reward.outlier", 60),
    "pipit": ("incident", "prob.processed_logprobs", 50),
    "plover": ("incident", "reward.false_negative", 55),
    "puffin": ("incident", "reward.false_positive", 55),
    "quail": ("incident", "opt.kl_constraint", 1),
    "raven": ("incident", "opt.entropy_bonus", 40),
    "robin": ("healthy", None, None),
    "shrew": ("incident", "reward.wrong_group", 60),
    "siskin": ("healthy", None, None),
    "skua": ("incident", "prob.positions", 1),
    "snipe": ("incident", "num.update_absorbed", 41),
    "sole": ("incident", "grad.missing_microbatch", 31),
    "sparrow": ("incident", "metric.misleading", 45),
    "stoat": ("incident", "grad.accumulation_scale", 60),
    "tapir": ("incident", "id.rows", 60),
    "toad": ("incident", "grad.objective", 60),
    "vole": ("incident", "num.low_precision_logprob", 1),
    "wagtail": ("incident", "reward.verifier_outage", 33),
    "walrus": ("incident", "grad.frozen", 60),
    "weevil": ("incident", "opt.reference_model", 1),
    "wombat": ("incident", "data.wrong_gold", 61),
}

CRASH_LAYERS = (
    "records", "probability", "accumulation", "masks", "numerics", "optimizer", "reward",
)  # fmt: skip
CRASH_CAUSES = [id_ for id_, cause in causes().items() if cause.layer in CRASH_LAYERS]


@pytest.mark.parametrize(("playbook", "check", "run", "expected"), CASES)
def test_case(
    playbook: str, check: str, run: str, expected: str, verdict_of: Callable[[str], Verdict]
) -> None:
    outcomes = {f"{c.layer}.{c.check}": c.outcome for c in verdict_of(run).checks}
    assert outcomes[check] == expected


@pytest.mark.parametrize(("playbook", "check", "outcomes"), BOUNDED)
def test_a_bound_has_a_case_on_each_side(
    playbook: str, check: str, outcomes: frozenset[str]
) -> None:
    assert {"pass", "fail"} <= outcomes


@pytest.mark.parametrize("run", sorted(LEADING))
def test_what_leads_and_since_when(run: str, verdict_of: Callable[[str], Verdict]) -> None:
    verdict = verdict_of(run)
    cause = verdict.leading.cause if verdict.leading else None
    assert (verdict.outcome, cause, verdict.first_bad.first_bad) == LEADING[run]


@pytest.mark.parametrize("cause", CRASH_CAUSES)
def test_a_cause_has_a_run_that_ends_in_it_and_a_look_alike(cause: str) -> None:
    ends = {lead for _, lead, _ in LEADING.values()} | {c.cause for c in all_cases().values()}
    assert cause in ends, "no run ends in it"
    assert cause in {c.twin_of for c in all_cases().values()}, "no sound run looks like it"


def test_every_recorded_run_has_an_expected_verdict() -> None:
    assert {folder.name for folder in RUNS.iterdir() if folder.is_dir()} == set(LEADING)


def test_a_rate_that_the_settings_raise_is_said_to_be_theirs(
    verdict_of: Callable[[str], Verdict],
) -> None:
    leading = verdict_of("badger").leading
    assert leading is not None
    assert "0.0001 -> 0.002" in leading.claim
    assert "(peak 0.002) is the one after the jump" in leading.claim
    assert leading.confidence == "medium"
