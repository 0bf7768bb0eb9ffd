from __future__ import annotations

from firstbad.tools.certificate import Certificate, CertifiedCheck
from firstbad.tools.evidence import Evidence
from firstbad.tools.flight import Flight
from firstbad.tools.registry import run_tool
from firstbad.tools.run import Run

CHECKS = (
    CertifiedCheck("accumulation", "pass", {"norm_ratio": 1.0}, {"norm_ratio": 1.01}),
    CertifiedCheck("mask_construction", "fail"),
    CertifiedCheck("loss_numerics", "not_run"),
)


def measured(run: Run, *differs: str) -> Evidence:
    run.flight = Flight(certificate=Certificate("2026-01-01", CHECKS, differs))
    return run_tool("read_certificate", run, {}, evidence_id="E1")


def test_checks_are_told_as_they_came_out(healthy: Run) -> None:
    found = measured(healthy)
    assert found.metrics == {
        "n_checks": 3,
        "key_agrees": True,
        "loss_numerics": None,
        "mask_construction": False,
        "accumulation": True,
        "trainer_repeatability": None,
    }
    assert found.summary == "preflight of the same code and settings passed: accumulation"
    assert found.tables[0].rows[0] == ("accumulation", "pass", "norm_ratio 1", "norm_ratio 1.01")


def test_a_certificate_of_something_else_tells_only_that(healthy: Run) -> None:
    found = measured(healthy, "config", "versions")
    assert found.metrics is not None
    assert found.metrics["key_agrees"] is False
    assert found.metrics["accumulation"] is None
    assert found.summary == "a preflight of something else, not used: other config, versions"


def test_without_a_certificate_there_is_no_data(healthy: Run) -> None:
    healthy.flight = Flight()
    assert run_tool("read_certificate", healthy, {}, evidence_id="E1").status == "no_data"
