"""A few lines of loss code, and what is found in them."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from firstbad.tools.code.files import CodeFile
from firstbad.tools.code.look import Place, look_in
from firstbad.tools.code.syntax import parse

LookAt = Callable[..., list[Place]]


@pytest.fixture
def look_at() -> LookAt:
    """Findings in code; lines are those of the code. Nothing in it is carried out."""

    def look(code: str, pattern: str | None = None) -> list[Place]:
        places = look_in(parse(CodeFile("loss.py", dedent(code).strip("\n").encode())))
        return [p for p in places if pattern in (None, p.pattern)]

    return look
