"""`training_args.bin` as a source of settings: when it is used, and where it differs."""

from __future__ import annotations

import io
import json
import pickle
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.readers import open_run
from firstbad.tools.readers.training_args import MOST
from firstbad.tools.run import Run


class GRPOConfig:
    """As TRL's: a dataclass is pickled as its class and its fields."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__ |= fields


@pytest.fixture(autouse=True)
def trl(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("trl.trainer.grpo_config")
    monkeypatch.setattr(GRPOConfig, "__module__", module.__name__)
    module.GRPOConfig = GRPOConfig  # type: ignore[attr-defined]
    for name in ("trl", "trl.trainer"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def saved(**fields: Any) -> bytes:
    """The zip that torch writes."""
    return zipped(pickle.dumps(GRPOConfig(**fields), protocol=2))


def zipped(pickled: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("training_args/data.pkl", pickled)
        archive.writestr("training_args/version", "3\n")
    return out.getvalue()


SETTINGS = {"beta": 0.04, "num_generations": 8, "output_dir": "/home/a", "_n_gpu": 1}


@pytest.fixture
def opened(make: Any, tmp_path: Path) -> Any:
    """Writes these files beside a run of two steps and opens it."""

    def build(**files: bytes | dict[str, Any]) -> Run:
        log = [{"step": step, "reward": 0.5} for step in (1, 2)]
        make.json("trainer_state.json", {"global_step": 2, "log_history": log})
        for name, held in files.items():
            place = {"args": "args.json", "last": "training_args.bin"}.get(
                name, f"checkpoint-{name.lstrip('c')}/training_args.bin"
            )
            make.text(place, held if isinstance(held, bytes) else json.dumps(held))
        return open_run(str(tmp_path))

    return build


def changes(run: Run) -> list[str]:
    return [event.text for event in run.events if event.kind == "config_change"]


def test_it_serves_where_there_is_no_other(opened: Any) -> None:
    run = opened(c60=saved(**SETTINGS, hub_token="hf_abc", optim_kwargs={"api_key": "s3cret"}))
    assert run.config.of_trainer
    assert run.config.number("beta") == 0.04
    assert run.rollouts is not None
    assert [s.ref for s in run.config.sources] == ["checkpoint-60/training_args.bin"]
    assert "_n_gpu" not in run.config.values
    assert "hf_abc" not in str(run.config.values)
    assert "s3cret" not in str(run.config.values)
    assert run.notes == ()
    assert changes(run) == []


def test_the_last_one_serves_and_what_changed_is_listed(opened: Any) -> None:
    run = opened(
        c60=saved(**SETTINGS, lr=1.0),
        c120=saved(**{**SETTINGS, "beta": 0.1, "output_dir": "/b"}, lr=1),
    )
    assert run.config.number("beta") == 0.1
    (told,) = changes(run)
    assert "`checkpoint-60/training_args.bin` and `checkpoint-120/training_args.bin`" in told
    assert told.endswith("differ: beta 0.04 -> 0.1")


def test_args_json_wins_and_the_difference_is_listed(opened: Any) -> None:
    stated = {"beta": 0.1, "num_generations": 8, "lr_scheduler_type": "SchedulerType.COSINE"}
    run = opened(args=stated, last=saved(**SETTINGS, lr_scheduler_type="cosine", epsilon=0.2))
    assert run.config.number("beta") == 0.1
    assert run.config.number("epsilon") is None  # one file is used, not a mixture
    (told,) = changes(run)
    assert "`args.json`, which is used" in told
    assert told.endswith("differ: beta 0.04 -> 0.1")


def test_a_file_of_other_settings_does_not_hide_it(opened: Any, make: Any) -> None:
    make.text("config.yaml", "wandb_version: 1\n")
    run = opened(c60=saved(**SETTINGS))
    assert run.config.number("beta") == 0.04


def test_the_form_before_zip_is_read(opened: Any) -> None:
    head = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
    pieces = [*(pickle.dumps(x, protocol=2) for x in head)]
    pieces += [pickle.dumps(GRPOConfig(**SETTINGS), protocol=2), pickle.dumps([])]
    assert opened(last=b"".join(pieces)).config.number("beta") == 0.04


HOSTILE = {
    "call": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
    "zipped call": zipped(b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R."),
    "zip bomb": zipped(b"\x80\x04" + b"N0" * 50_000_000 + b"N."),
    "large": bytes(5 * 2**20),
    "cut": zipped(b"\x80\x04N.")[:-40],
    "zip of other things": zipped(b"")[:0] + b"PK\x05\x06" + bytes(18),
    "empty": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_note(opened: Any, name: str) -> None:
    run = opened(last=HOSTILE[name], c60=saved(**SETTINGS))
    assert [n.code in ("pickle_skipped", "file_skipped") for n in run.notes] == [True]
    assert "`training_args.bin`" in run.notes[0].text
    assert run.config.number("beta") == 0.04  # the next one serves


def test_of_many_checkpoints_the_newest_are_read(opened: Any) -> None:
    files = {f"c{step}": saved(beta=float(step)) for step in range(1, MOST + 11)}
    assert len(changes(opened(**files))) == MOST - 1
