"""Reading what a recorder wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def rows_in(file: Path) -> list[dict[str, Any]]:
    """Objects of a file of JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
