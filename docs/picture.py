"""Takes the README's picture of a memo: `python docs/picture.py`, with Chromium on the path.

The memo is that of the README's first command; what is taken is the top of its page.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from unittest import mock

from firstbad.agent.investigate import Finished, investigate

PICTURE = Path(__file__).parent / "images" / "memo.png"
COMPLAINT = "reward dropped to a quarter at step 66"
WIDTH, HEIGHT = 1200, 1170
"""Pixels: the first page with its charts, and nothing of the walk."""


def main() -> None:
    """Investigate the shipped run and take a headless screenshot of its memo."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("the picture needs chromium or google-chrome")
    with (
        tempfile.TemporaryDirectory() as home,
        mock.patch.dict(os.environ, {"FIRSTBAD_HOME": home}),
    ):
        found = investigate("demo:heron", COMPLAINT)
        assert isinstance(found, Finished)
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={home}/browser",
                f"--window-size={WIDTH},{HEIGHT}",
                f"--screenshot={PICTURE}",
                found.incident.html_file.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    print(f"written: {PICTURE}")


if __name__ == "__main__":
    main()
