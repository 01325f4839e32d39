"""Build a rival from its Go module in the folder beside this file, unless that is done.

nice python -m hack.bench.peers.programs NAME       # prints the directory of its binary
"""

from __future__ import annotations

import sys
from pathlib import Path

from hack.kind.programs import plain

from trimtab.errors import TrimtabError
from trimtab_local.control_plane import build as builder


def directory(name: str) -> Path:
    """Directory of a rival's binary. Raises LocalClusterError."""
    return builder.build(plain(Path(__file__).parent / name, name))


if __name__ == "__main__":
    try:
        print(directory(sys.argv[1]))
    except TrimtabError as error:
        sys.exit(f"error: {error}")
