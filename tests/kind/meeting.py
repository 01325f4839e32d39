"""What the gangs of these tests run: all ranks meet at the first one, and leave together after some seconds.

`python meeting.py SECONDS`, with the environment of a gang. Standard library only: it runs in the operator's image.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

BYE = b"bye"
ASKED_TO_STOP = 143


def lead(port: int, others: int, seconds: float) -> None:
    """Wait for the others, wait for `seconds`, and let all go."""
    with socket.create_server(("", port)) as server:
        here = [server.accept()[0] for _ in range(others)]
        print("all here", flush=True)
        time.sleep(seconds)
        for each in here:
            each.sendall(BYE)


def follow(address: str, port: int) -> None:
    """Come, and stay until we are let go. The leader's name may not be known yet, nor its port open."""
    while True:
        try:
            meeting = socket.create_connection((address, port), timeout=10)
        except OSError as error:
            print(f"{address}: {error}", flush=True)
            time.sleep(0.5)
        else:
            break
    print("here", flush=True)
    meeting.settimeout(None)
    if meeting.recv(len(BYE)) != BYE:
        sys.exit("the leader has gone without a word")


def main() -> None:
    """As rank PET_NODE_RANK of PET_NNODES."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ASKED_TO_STOP))  # the first process has no default for it
    rank, size = int(os.environ["PET_NODE_RANK"]), int(os.environ["PET_NNODES"])
    address, port = os.environ["PET_MASTER_ADDR"], int(os.environ["PET_MASTER_PORT"])
    if rank == 0:
        lead(port, size - 1, float(sys.argv[1]))
    else:
        follow(address, port)
    print(f"rank {rank} of {size} is done", flush=True)


if __name__ == "__main__":
    main()
