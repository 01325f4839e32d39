"""A program in a terminal, driven by its keys."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from collections.abc import Sequence


def in_terminal(
    words: Sequence[str], until_seen: bytes, *, keys: bytes = b"q", **environment: str
) -> tuple[bytes, int]:
    """What a program writes into a terminal until it has written this and was told to quit, and its exit code."""
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        words, stdin=terminal, stdout=terminal, stderr=terminal,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **environment},
    )  # fmt: skip
    os.close(terminal)
    written = b""
    try:
        while select.select([main], [], [], 60)[0]:
            try:
                part = os.read(main, 1 << 16)
            except OSError:  # the other end is closed
                break
            if until_seen in written + part and until_seen not in written:
                os.write(main, keys)
            written += part
        return written, process.wait(30)
    finally:
        process.kill()
        process.wait()
        os.close(main)
