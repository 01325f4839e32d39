"""A command that goes on until somebody ends it, in a terminal: wait for what it shows, and press Ctrl-C.

python -m tests.docs.attended 'Ctrl-C ends it' trimtab ui
"""

from __future__ import annotations

import sys

from tests.top.terminal import in_terminal

CTRL_C = b"\x03"
ENDED = (0, 1, 130)
"""Exit codes of a command that was ended so."""


def main() -> None:
    """Exits with 1 where the command did not show it, or did not end as it should."""
    shown, *words = sys.argv[1:]
    written, code = in_terminal(["setsid", "--ctty", "--wait", *words], shown.encode(), keys=CTRL_C)
    if shown.encode() not in written or code not in ENDED or b"Traceback" in written:
        sys.exit(f"{' '.join(words)} ended with {code}:\n{written.decode(errors='replace')[-3000:]}")


if __name__ == "__main__":
    main()
