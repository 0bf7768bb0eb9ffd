"""Losses of micro-batches, recomputed from the captured tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.readers import open_run
from firstbad.tools.run import Run
from synthetic.cases_accumulation import Halved, KlTurned, Scaled, Unclipped
from synthetic.cases_lookalikes import RowMeans as AsStated
from synthetic.cases_losses import Cispo, Vespo
from synthetic.trainer import Trainer

TOOL = "check_captured_loss"
Measure = Callable[..., dict[str, Any]]


class TwicePerBatch(Trainer):
    """Tokens are captured at the second update, when ratios have left 1."""

    def old_table(self) -> Any:
        return self.engine - 0.5 * (self.reference - self.engine)


class RowMeans(Trainer):
    """The settings state another loss than the one that is trained."""

    def config(self) -> dict[str, object]:
        return super().config() | {"loss_type": "grpo"}


def written(folder: Path, kind: type[Trainer], **settings: Any) -> Run:
    return open_run(str(kind(steps=24, captures=8, **settings).run(folder)))


def test_losses_are_those_of_the_tokens(tmp_path: Path, measure: Measure) -> None:
    found = measure(TOOL, written(tmp_path, Trainer, accumulation=4))
    assert (found["n_steps"], found["n_microbatches"]) == (8, 32)
    assert (found["policy_coefficient"], found["kl_coefficient"]) == (1, 1)
    assert found["error_share"] < 1e-6
    assert found["plain_coefficient"] is None
    assert found["first_bad_step"] is None


@pytest.mark.parametrize("kind", [Cispo, Vespo])
def test_losses_of_log_probs_at_ratios_off_one(
    tmp_path: Path, measure: Measure, kind: type[Trainer]
) -> None:
    mixed = type("Mixed", (TwicePerBatch, kind), {})
    run = open_run(str(mixed(steps=24, captures=8, accumulation=2).run(tmp_path)))
    found = measure(TOOL, run)
    assert (found["policy_coefficient"], found["kl_coefficient"]) == (1, 1)
    assert found["error_share"] < 1e-6


@pytest.mark.parametrize(("kind", "policy", "kl"), [(KlTurned, 1, -1), (Halved, 0.5, 1)])
def test_the_wrong_term_is_named(
    tmp_path: Path, measure: Measure, kind: type[Trainer], policy: float, kl: float
) -> None:
    found = measure(TOOL, written(tmp_path, kind))
    assert found["policy_coefficient"] == pytest.approx(policy, abs=0.01)
    assert found["kl_coefficient"] == pytest.approx(kl, abs=0.01)
    assert found["balance_off"] == pytest.approx(abs(policy - kl), abs=0.02)
    assert found["fit_correlation"] > 0.999


def test_row_means_over_whole_groups_say_nothing_of_the_advantage_term(
    tmp_path: Path, measure: Measure
) -> None:
    found = measure(TOOL, written(tmp_path, AsStated))
    assert (found["policy_coefficient"], found["kl_coefficient"]) == (None, 1)
    assert (found["balance_off"], found["plain_coefficient"]) == (None, None)


def test_a_factor_of_the_pipeline_is_no_term(tmp_path: Path, measure: Measure) -> None:
    """It is in the ledger's scales, which the recomputed losses have too."""
    run = written(tmp_path, Scaled, onset=1)
    assert measure("check_microbatch_weights", run)["factor"] == 2
    found = measure(TOOL, run)
    assert (found["balance_off"], found["policy_coefficient"]) == (0, 1)


@pytest.mark.parametrize(("kind", "plain"), [(Trainer, None), (Unclipped, 1)])
def test_clipping_shows_where_ratios_leave_one(
    tmp_path: Path, measure: Measure, kind: type[Trainer], plain: float | None
) -> None:
    mixed = type("Mixed", (TwicePerBatch, kind), {})
    found = measure(TOOL, written(tmp_path, mixed))
    assert found["plain_coefficient"] == plain
    assert (found["error_share"] < 1e-6) is (plain is None)


def test_another_loss_than_the_stated_one_does_not_fit(tmp_path: Path, measure: Measure) -> None:
    assert measure(TOOL, written(tmp_path, RowMeans))["error_share"] > 0.05


@pytest.mark.parametrize(
    "setting",
    [{"kl_loss_type": "k1"}, {"vllm_importance_sampling_correction": True}, {"loss_type": "gspo"}],
)
def test_what_it_does_not_know_is_not_compared(
    tmp_path: Path, missing: Callable[..., str], setting: dict[str, object]
) -> None:
    class Other(Trainer):
        def config(self) -> dict[str, object]:
            return super().config() | setting

    assert missing(TOOL, written(tmp_path, Other))


def test_a_correction_for_an_engine_that_is_not_used_scales_nothing(
    tmp_path: Path, measure: Measure
) -> None:
    class NoEngine(Trainer):
        def config(self) -> dict[str, object]:
            return super().config() | {
                "use_vllm": False,
                "vllm_importance_sampling_correction": True,
            }

    assert measure(TOOL, written(tmp_path, NoEngine))["error_share"] < 1e-6


def test_a_ledger_without_captured_tokens(tmp_path: Path, missing: Callable[..., str]) -> None:
    folder = Trainer(steps=24).run(tmp_path)
    for tokens in folder.glob("steps/*/tokens.safetensors"):
        tokens.unlink()
    assert "six micro-batches" in missing(TOOL, open_run(str(folder)))


class CorrectedKl(TwicePerBatch):
    """The KL term is multiplied with the ratio, as the settings say."""

    def token_terms(self, batch: Any, new: Any) -> Any:
        ratio, objective, kl, value, slope = super().token_terms(batch, new)
        return ratio, objective, kl, value + self.s.beta * kl * (ratio - 1), slope


@pytest.mark.parametrize("stated", [True, False])
def test_a_kl_term_times_the_ratio(tmp_path: Path, measure: Measure, stated: bool) -> None:
    class Stated(CorrectedKl):
        def config(self) -> dict[str, object]:
            return super().config() | {"use_bias_correction_kl": stated}

    assert (measure(TOOL, written(tmp_path, Stated))["error_share"] < 1e-6) is stated
