"""Runs with the certificate of a preflight, which holds for them or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firstbad_recorder.certificate import write_certificate
from synthetic.cases import Case
from synthetic.cases_masks import PromptTrained
from synthetic.trainer import Trainer

NAMES = ("loss_numerics", "mask_construction", "accumulation", "trainer_repeatability")
KEY = {"loss_code": "a" * 64, "model_shape": "b" * 64}
VERSIONS = {"numpy": "2.3.5"}


class Unlogged(Trainer):
    """Logs neither its loss nor how many tokens it trained."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        """See the class."""
        return {k: v for k, v in row.items() if "loss" not in k and "tokens" not in k}


class OncePassed(Trainer):
    """Several updates a batch, and no pass is made twice."""

    def tokens(self, found: dict[str, Any]) -> dict[str, Any]:
        """See the class."""
        return {k: v for k, v in found.items() if k not in ("logp_recheck", "logp_layout")}


def certified(*, tokens: bool = False, **other: object) -> Callable[[Path], None]:
    """Leave a certificate that passes all checks; `other` settings are those it was made with.

    Without `tokens` the record loses its token arrays and ledgers.
    """

    def files(folder: Path) -> None:
        for step in folder.glob("steps/*"):
            for name in ("tokens.safetensors", "microbatches.jsonl"):
                if not tokens:
                    (step / name).unlink(missing_ok=True)
        run: dict[str, Any] = json.loads((folder / "run.json").read_text())
        run |= {"versions": VERSIONS, "preflight_key": KEY}
        (folder / "run.json").write_text(json.dumps(run))
        checks = [{"name": name, "outcome": "pass"} for name in NAMES]
        config = {**run["config"], **other}
        write_certificate(folder, checks, config=config, versions=VERSIONS, preflight_key=KEY)

    return files


CASES = [
    Case(
        "x1", Unlogged, "healthy", files=certified(),
        checks={
            "accumulation.loss_identity": "pass",
            "masks.captured": "pass",
            "numerics.log_eps": "pass",
        },
    ),
    # Made with another learning rate: it says nothing of this run.
    Case(
        "x2", Unlogged, "undetermined", files=certified(learning_rate=1.0),
        checks={
            "accumulation.loss_identity": "inconclusive",
            "masks.captured": "inconclusive",
            "numerics.log_eps": "inconclusive",
        },
    ),
    # What is seen in the run counts, whatever was certified before it.
    Case(
        "x3", lambda: PromptTrained(onset=24), "incident", "mask.prompt",
        files=certified(tokens=True), checks={"masks.captured": "fail"},
    ),
    Case(
        "x4", lambda: OncePassed(updates=2), "healthy", files=certified(tokens=True),
        checks={"probability.ratio_before_update": "pass"},
    ),
    Case(  # what was logged of the engine decides
        "x5", lambda: OncePassed(updates=2), "healthy",
        files=certified(tokens=True, learning_rate=1.0),
        checks={"probability.ratio_before_update": "pass"},
    ),
]  # fmt: skip
