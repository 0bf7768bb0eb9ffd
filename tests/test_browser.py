"""The memo in a real browser: it opens without the network and without script errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]


def test_memo_of_the_demo_renders(chromium: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("firstbad")
    subprocess.run([program, "demo", "--out", tmp_path / "demo"], cwd=tmp_path, check=True)
    (memo,) = (tmp_path / "demo").rglob("memo.html")
    browser = (
        chromium,
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *("--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"),
        *(f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", "--dump-dom"),
    )
    done = subprocess.run(
        [*browser, memo.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert not console
    assert "<h1" in done.stdout
    assert "<svg" in done.stdout, "no plot was drawn"
