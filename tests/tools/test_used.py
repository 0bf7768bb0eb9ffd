"""Evidence names every file it was read from, and no tool reads one that it does not name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.readers import open_run
from firstbad.tools.registry import run_tool, tools

DEMO = Path(__file__).parents[2] / "agent" / "demo_runs" / "heron"
PARTS = {
    "answers": ("data",),
    "dumps": ("batch_dumps",),
    "log": ("train.log",),
    "rollouts": ("completions",),
    "settings": ("args.json", "model_config.json"),
    "tokenizer": ("tokenizer",),
}
WITHOUT_DATA = (
    "compare_group_rates",
    "compare_scores",
    "check_attention",
    "check_captured_loss",
    "check_clamps",
    "check_cut_switches",
    "check_deliveries",
    "check_generation_config",
    "check_microbatch_norms",
    "check_microbatch_rows",
    "check_microbatch_weights",
    "check_moments",
    "check_moved_share",
    "check_objective_probe",
    "check_parameter_groups",
    "check_policy_lag",
    "check_resumed_seeds",
    "check_positions",
    "check_row_origin",
    "check_seeds",
    "check_stop_tokens",
    "check_stored_weights",
    "check_trail_precision",
    "classify_reproduction",
    "compare_engine_tokens",
    "compare_evaluations",
    "compare_first_tokens",
    "compare_logprobs",
    "compare_requested",
    "compare_routing",
    "compare_stages",
    "compare_states",
    "count_scoring_errors",
    "find_delivery_gaps",
    "find_still_parameters",
    "fit_processing",
    "fit_version",
    "measure_microbatch_reach",
    "measure_scoring_time",
    "measure_update_size",
    "find_heavy_update",
    "measure_update_sign",
    "measure_weight_moves",
    "read_accumulation_probe",
    "read_certificate",
    "read_fit_probe",
    "read_judge",
    "read_loss_code",
    "read_loss_scale",
    "read_trail",
)
"""The demo has neither optimizer states nor weights, no rerun, and no record of a recorder."""


def measure(folder: Path) -> dict[str, Evidence]:
    run = open_run(f"trl:{folder}")
    return {name: run_tool(name, run, {}, evidence_id="E1") for name in tools()}


@pytest.fixture(scope="module")
def whole() -> dict[str, Evidence]:
    return measure(DEMO)


def test_every_measurement_of_a_real_run_names_its_files(whole: dict[str, Evidence]) -> None:
    for name, found in whole.items():
        if name in WITHOUT_DATA:
            assert found.status == "no_data", name
            continue
        assert found.status == "measured", name
        assert found.sources, name
        for source in found.sources:
            assert source.digest is not None, (name, source)
            assert (DEMO / source.ref).is_file(), (name, source)
        assert len({source.ref for source in found.sources}) == len(found.sources), name


@pytest.mark.parametrize("part", PARTS)
def test_what_is_not_named_changes_nothing(
    part: str, whole: dict[str, Evidence], tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(DEMO, copy, ignore=lambda _, names: {n for n in names if n in PARTS[part]})
    named = set()
    for name, found in measure(copy).items():
        if any(source.ref.startswith(PARTS[part]) for source in whole[name].sources):
            named.add(name)
        else:
            left_out = {"id": "E1", "seconds": 0.0, "sources": ()}
            assert found.model_copy(update=left_out) == whole[name].model_copy(update=left_out)
    assert named


def test_a_tool_that_reads_one_dump_names_one(whole: dict[str, Evidence]) -> None:
    dumps = [s.ref for s in whole["compare_first_pass"].sources if s.kind == "capture"]
    assert dumps == ["batch_dumps/step_00001.npz"]


def test_missing_data_names_what_was_looked_at(tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(DEMO, copy, ignore=lambda _, names: {n for n in names if n == "completions"})
    found = measure(copy)["check_loss_identity"]
    assert found.status == "no_data"
    assert "args.json" in {source.ref for source in found.sources}
