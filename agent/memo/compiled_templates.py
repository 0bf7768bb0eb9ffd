"""Compiled templates, kept between runs: to compile them takes longer than to fill them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from types import CodeType

import jinja2
from jinja2 import BytecodeCache
from jinja2.bccache import Bucket

from firstbad.tools.compiled import keep, kept

FOLDER = Path(str(files("firstbad.agent.memo") / "templates"))


class CompiledTemplates(BytecodeCache):
    """Of one environment: `settings` are those of it that the compiled code depends on."""

    def __init__(self, settings: object) -> None:
        """Nothing is read before a template is asked for."""
        self._settings = f"{jinja2.__version__}|{settings!r}"

    def load_bytecode(self, bucket: Bucket) -> None:
        """Take what was kept of the template, if its text is the same."""
        found = kept(FOLDER / bucket.key, self._content(bucket))
        bucket.code = found if isinstance(found, CodeType) else None

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what was compiled."""
        keep(FOLDER / bucket.key, self._content(bucket), bucket.code)

    def _content(self, bucket: Bucket) -> bytes:
        return f"{self._settings}|{bucket.checksum}".encode()
