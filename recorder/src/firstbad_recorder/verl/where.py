"""Where the record lies: agreed on by the processes of a run through one environment variable."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from firstbad_recorder.secrets import without_secrets

RECORD = "FIRSTBAD_RECORD"
"""Names the folder. Unless set, it is `record` in `trainer.default_local_dir`."""
OPTIONS = "FIRSTBAD_RECORD_OPTIONS"
"""Settings of `Recorder` that are whole numbers: `baseline_every=20 max_bytes=4000000000`."""
MODULES = "VERL_USE_EXTERNAL_MODULES"
_NUMBERS = ("baseline_every", "max_bytes", "ring_bytes", "ring_steps")
_log = logging.getLogger("firstbad_recorder")
_said: set[str] = set()


def stated() -> str | None:
    """The folder that the environment names."""
    return os.environ.get(RECORD) or None


def options() -> dict[str, int]:
    """What the environment asks of the recorder; what it can't be asked is said once."""
    found = {}
    for part in os.environ.get(OPTIONS, "").replace(",", " ").split():
        name, _, value = part.partition("=")
        if name in _NUMBERS and value.isdecimal():
            found[name] = int(value)
        else:
            say_once(
                f"{OPTIONS} has `{part[:80]}`; it takes whole numbers of {', '.join(_NUMBERS)}"
            )
    return found


def folder_of(config: Any) -> str | None:
    """The folder of a run, by the environment or else by its config."""
    if (found := stated()) is not None:
        return found
    local = config.trainer.get("default_local_dir")
    return os.path.join(os.path.abspath(str(local)), "record") if local else None


def to_workers(environment: dict[str, Any], config: Any) -> None:
    """Add to the variables of Ray's processes what the recorder needs in each."""
    for name in (MODULES, OPTIONS):
        if os.environ.get(name):
            environment.setdefault(name, os.environ[name])
    folder = None if config is None else folder_of(config)
    if folder is not None:
        environment.setdefault(RECORD, folder)


def settings_of(config: Any) -> dict[str, object]:
    """The settings in force, resolved, without what may be a secret."""
    from omegaconf import OmegaConf

    found = OmegaConf.to_container(config, resolve=True)
    return without_secrets(found) if isinstance(found, Mapping) else {}


def say_once(text: str) -> None:
    """Tell the log of this process, but not again."""
    if text not in _said:
        _said.add(text)
        _log.warning("firstbad_recorder: %s", text)
