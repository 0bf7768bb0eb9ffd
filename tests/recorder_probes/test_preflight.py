from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from firstbad_recorder import Recorder, surroundings
from firstbad_recorder.preflight import Preflight, preflight
from firstbad_recorder.preflight_checks import CHECKS
from firstbad_recorder.probes.loss_function import Stated
from recorder_probes import losses
from recorder_probes.models import V, forward, small_model

torch = pytest.importorskip("torch")

SOURCE = [[0, 2, 2, 3, 3], [2, 2, 3, 3, 3]]
MASK = [[int(kind == 3) for kind in row] for row in SOURCE]


def outcomes(made: Preflight) -> dict[str, str]:
    return {check.name: check.outcome for check in made.checks}


def one_loop(model: Any, scale: float = 1.0) -> dict[str, Any]:
    """Arguments of a preflight of a loop that is right, up to `scale` on its gradient."""
    ids = torch.randint(1, V, (4, 6), generator=torch.Generator().manual_seed(0))

    def nll(rows: Any) -> Any:
        logp = forward(model, rows).log_softmax(-1)[:, :-1].gather(-1, rows[:, 1:, None])
        return -logp.mean()

    def backward(given: Sequence[Any]) -> None:
        for rows in given:
            (nll(rows) * (scale if len(given) > 1 else 1.0) / len(given)).backward()

    def run(token_id: Any, attention_mask: Any, position: Any) -> Any:
        return forward(model, token_id, attention_mask, position)

    return {
        "loss_function": losses.ppo(fuse=20.0),
        "stated": Stated(epsilon_low=0.2, epsilon_high=0.2),
        "masks": {"source": SOURCE, "loss_mask": MASK},
        "model": model,
        "accumulation": {"backward": backward, "whole": ids, "parts": list(ids.chunk(2))},
        "consistency": {"rows": [[1, 2, 3, 4], [5, 6]], "n_prompt": [2, 1], "forward": run},
        "nll": lambda: nll(ids),
        "config": {"loss_type": "bnpo", "learning_rate": 1e-6},
    }


def test_a_sound_loop_passes_everything_and_gets_a_certificate(tmp_path: Path) -> None:
    made = preflight(tmp_path / "run", **one_loop(small_model()))
    assert made.failed == []
    assert set(outcomes(made).values()) == {"pass"}
    written = json.loads((tmp_path / "run/certificate.json").read_text())
    assert written["schema_version"] == 1
    assert [check["name"] for check in written["checks"]] == [*CHECKS]
    assert set(written["checks"][0]) == {"name", "outcome", "measured", "bound", "text"}
    assert set(written["key"]) == {"loss_code", "config", "versions", "model_shape"}
    assert all(len(digest) == 64 for digest in written["key"].values())
    assert "6 passed, 0 not run" in made.report()
    assert made.denominators[0]["what"] == "policy term"


def test_a_factor_fails_with_both_operands_and_the_fix() -> None:
    made = preflight(**one_loop(small_model(), scale=2.0))
    assert made.failed == ["accumulation"]
    report = made.report()
    assert "FAIL  accumulation" in report
    assert "norm ratio 2 (must be 1)" in report
    assert "looks like: number of micro-batches" in report
    assert '"norm_ratio": 1.0' in report
    assert "fix       divide the loss by the number of micro-batches once" in report


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([[0, 1, 1, 1, 1], MASK[1]], "2 prompt tokens are trained, first at row 0, place 1"),
        ([[0, 0, 1, 1, 0], [0, 1, 1, 1, 0]], "the mask lies 1 to the left"),
        ([[0] * 5] * 2, "no token is trained"),
    ],
)
def test_a_wrong_mask_fails_and_says_where(mask: list[list[int]], said: str) -> None:
    made = preflight(masks={"source": SOURCE, "loss_mask": mask})
    assert made.failed == ["mask_construction"]
    assert said in made.report()


def test_a_limit_after_exp_fails_and_one_before_it_passes() -> None:
    made = preflight(loss_function=losses.clamp_after_exp)
    assert outcomes(made)["loss_numerics"] == "fail"
    assert "exp overflows before the limit" in made.report()
    assert outcomes(preflight(loss_function=losses.ppo(fuse=20.0)))["loss_numerics"] == "pass"
    # No limit, in float32: not finite only beyond 88, and the loss says so. TRL's own losses.
    assert outcomes(preflight(loss_function=losses.ppo()))["loss_numerics"] == "pass"


def test_a_subtraction_in_bfloat16_fails_and_an_upcast_passes() -> None:
    made = preflight(loss_function=losses.subtracted_in_bfloat16)
    assert "must see 0.001" in made.report()
    assert made.failed == ["loss_numerics"]
    assert preflight(loss_function=losses.upcast_first).failed == []


def test_infinity_at_masked_places_fails_only_where_the_batch_has_it() -> None:
    from firstbad_recorder.probes.loss_input import LossInput

    def example(rest: float) -> LossInput:
        logp = torch.tensor([[-1.0, -2.0, rest]])
        return LossInput(logp, logp, torch.ones(1), torch.tensor([[1.0, 1.0, 0.0]]))

    held = preflight(loss_function=losses.ppo(), example=example(float("-inf")))
    assert held.failed == ["loss_numerics"]
    assert "masked_fill" in held.report()
    assert preflight(loss_function=losses.ppo(), example=example(-3.0)).failed == []


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (losses.ppo(sign=-1.0), "lowers the log-prob"),
        (losses.without_minimum, "the gradient is cut at ratio 0.8, where it must flow"),
        (losses.ppo(losses.unmasked), "masked places have a weight of 1"),
        (lambda g: losses.ppo()(g).detach(), "does not move the log-prob"),
        (lambda g: losses.ppo()(g) * float("nan"), "at ratio 1 is not finite"),
        (losses.whitened, "moves with the advantage of another row"),
        (losses.ppo(high=0.6), "up_cut (ratio 1.44) is -1.44 and must be -0"),
    ],
)
def test_a_wrong_loss_fails_by_what_is_wrong_about_it(loss: Any, said: str) -> None:
    made = preflight(loss_function=loss, stated=Stated(epsilon_low=0.2, epsilon_high=0.2))
    assert outcomes(made)["loss_definition"] == "fail"
    assert said in made.report()


def test_cuts_on_both_sides_pass_where_they_are_meant() -> None:
    meant = Stated(form="mask", epsilon_low=0.2, epsilon_high=0.2)
    made = preflight(loss_function=losses.without_minimum, stated=meant)
    assert outcomes(made)["loss_definition"] == "pass"
    other = preflight(loss_function=losses.ppo(), stated=meant)
    assert outcomes(other)["loss_definition"] == "fail"


def test_dropout_between_two_passes_fails_and_is_no_fault_when_it_is_off() -> None:
    how = one_loop(small_model(dropout=0.3).train())
    made = preflight(model=how["model"], consistency=how["consistency"])
    assert made.failed == ["trainer_repeatability"]
    assert "switch dropout off" in made.report()
    off = {**how["consistency"], "keep_mode": False}
    assert preflight(model=how["model"], consistency=off).failed == []


def test_a_likelihood_that_does_not_fall_fails() -> None:
    how = one_loop(small_model())
    cut = preflight(model=how["model"], nll=lambda: how["nll"]().detach())
    assert cut.failed == ["fit"]
    assert "no tensor gets a gradient" in cut.report()


def test_what_is_not_given_is_not_run_and_says_what_it_needs(tmp_path: Path) -> None:
    made = preflight(tmp_path)
    assert set(outcomes(made).values()) == {"not_run"}
    assert "pass `loss_function`" in made.report()
    assert made.preflight_key == {"loss_code": "", "model_shape": ""}
    written = json.loads((tmp_path / "certificate.json").read_text())
    assert {check["outcome"] for check in written["checks"]} == {"not_run"}


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda given: 1.0, "TypeError: the loss function gave float, not a tensor"),
        (lambda given: given.logp_new * 2, "gave a tensor of shape (4, 2), not a scalar"),
    ],
)
def test_a_loss_that_gives_no_scalar_is_said(loss: Any, said: str) -> None:
    made = preflight(loss_function=loss)
    assert made.broken == ["loss_numerics", "loss_definition"]
    assert said in made.report()


def test_a_factor_on_a_stated_reduction_is_named() -> None:
    stated = Stated(reduction="token_mean", epsilon_low=0.2, epsilon_high=0.2)
    made = preflight(loss_function=lambda g: losses.ppo()(g) * 4, stated=stated)
    assert made.failed == ["loss_definition"]
    assert "every gradient is 4 times that of the stated loss" in made.report()


def test_a_factor_on_the_whole_loss_fails_and_is_named() -> None:
    how = one_loop(small_model())
    meant = {"factor": 2.0, "loss": "bnpo", "steps": 4}
    made = preflight(model=how["model"], accumulation={**how["accumulation"], "scale": meant})
    assert made.failed == ["accumulation"]
    assert "2 times the gradient of the stated bnpo (must be 1)" in made.report()
    assert "looks like" not in made.report()
    four = {**how["accumulation"], "scale": {**meant, "factor": 4.0}}
    assert (
        "number of accumulation steps" in preflight(model=how["model"], accumulation=four).report()
    )
    one = {**how["accumulation"], "scale": {**meant, "factor": 1.0}}
    assert preflight(model=how["model"], accumulation=one).failed == []


def test_all_checks_are_described_and_only_four_certified() -> None:
    made = preflight(loss_function=losses.ppo(sign=-1.0))
    described = {check["name"]: check for check in made.described()}
    assert set(described) == {*outcomes(made)} > {c["name"] for c in made.certified()}
    assert described["loss_definition"]["outcome"] == "fail"
    assert described["loss_definition"]["fix"].startswith("check the sign")
    assert json.dumps(made.described(), allow_nan=False)


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_report_is_wrapped_at_words(width: int) -> None:
    made = preflight(**one_loop(small_model(), scale=2.0))
    whole, wrapped = made.report(0), made.report(width)
    assert whole.split() == wrapped.split()
    assert all('":' not in line[-2:] for line in wrapped.splitlines())
    if width > 40:
        assert max(map(len, wrapped.splitlines())) <= width


def test_a_probe_that_breaks_is_not_run_and_nothing_is_raised(tmp_path: Path) -> None:
    def broken(given: Any) -> Any:
        raise RuntimeError("shapes differ")

    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    made = preflight(blocked / "run", loss_function=broken, masks={"source": [[3]]})
    assert outcomes(made)["loss_numerics"] == "not_run"
    assert "RuntimeError: shapes differ (test_preflight.py:" in made.report()
    assert (
        made.report().splitlines()[-1].startswith("0 failed, 0 passed, 3 not run, 3 could not be")
    )
    assert outcomes(made)["mask_construction"] == "not_run"


def test_the_key_follows_code_settings_and_shape(tmp_path: Path) -> None:
    code = tmp_path / "loss.py"

    def key(text: str, config: dict[str, Any], deep: int) -> dict[str, str]:
        code.write_text(text)
        preflight(tmp_path, loss_code=code, config=config, model=small_model(deep=deep))
        written = json.loads((tmp_path / "certificate.json").read_text())["key"]
        assert isinstance(written, dict)
        return written

    one = key("a", {"b": 1, "a": 2}, deep=1)
    assert key("a", {"a": 2, "b": 1}, deep=1) == one
    other = key("b", {"a": 3, "b": 1}, deep=2)
    assert all(other[part] != one[part] for part in ("loss_code", "config", "model_shape"))
    assert other["versions"] == one["versions"]


def test_the_key_of_config_and_versions_is_that_of_the_runs_own_record(tmp_path: Path) -> None:
    config: dict[str, object] = {"beta": 0.0, "betas": (0.9, 0.95)}
    preflight(tmp_path, config=config)
    with Recorder(tmp_path, config=config, versions=surroundings()["versions"]) as recorder:
        recorder.scalars(1, loss=0.1)
    run = json.loads((tmp_path / "run.json").read_text())
    key = json.loads((tmp_path / "certificate.json").read_text())["key"]
    for part in ("config", "versions"):
        text = json.dumps(run[part], sort_keys=True, separators=(",", ":"))
        assert key[part] == hashlib.sha256(text.encode()).hexdigest()


def test_importing_preflight_and_probes_loads_no_torch() -> None:
    code = (
        "import pkgutil, sys, firstbad_recorder.preflight, firstbad_recorder.probes as p\n"
        "for m in pkgutil.iter_modules(p.__path__): __import__(p.__name__ + '.' + m.name)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
