"""`certificate.json`: checks made before the first step, and what they hold for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping

from firstbad_recorder.folder import replace
from firstbad_recorder.plain import as_plain, now
from firstbad_recorder.secrets import without_secrets

CERTIFICATE = "certificate.json"


def digest(value: object) -> str:
    """sha256 of a value as `run.json` holds it: JSON in ASCII, keys sorted, without spaces."""
    text = json.dumps(as_plain(value), allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(settings: Mapping[str, object]) -> str:
    """Of settings as `run.json` will hold them."""
    plain = as_plain(settings)
    return digest(without_secrets(plain) if isinstance(plain, dict) else {})


def write_certificate(
    folder: str | os.PathLike[str],
    checks: Iterable[Mapping[str, object]],
    *,
    config: Mapping[str, object],
    versions: Mapping[str, object],
    preflight_key: Mapping[str, str],
) -> None:
    """Write it into the folder of a record.

    Args:
        folder: Of the record; made if it is not there.
        checks: As FORMAT.md has them: `name`, `outcome`, `measured`, `bound`, `text`.
        config: As it is given to `Recorder`.
        versions: As they are given to `Recorder`.
        preflight_key: As it is given to `Recorder`: digests `loss_code` and `model_shape`.

    Raises:
        OSError: it can't be written.
    """
    key = {**preflight_key, "config": _digest(config), "versions": _digest(versions)}
    made = [as_plain(check) for check in checks]
    text = json.dumps(
        {"schema_version": 1, "made": now(), "checks": made, "key": key}, allow_nan=False, indent=2
    )
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(os.fspath(folder), CERTIFICATE)
    replace(file, text.encode())
