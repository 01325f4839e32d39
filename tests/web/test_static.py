"""What the page is made of: libraries that are the ones listed, and few enough bytes."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "operator" / "trimtab" / "web" / "static"


def test_vendored_files_have_the_sums_that_are_listed() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "hack/vendor", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_javascript_and_styles_are_at_most_90_kb_compressed() -> None:
    files = [path for path in STATIC.rglob("*") if path.suffix in {".js", ".css"}]
    assert len(files) > 10
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= 90_000
