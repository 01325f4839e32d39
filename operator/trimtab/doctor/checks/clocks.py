"""Clocks. Trimtab decides nothing by the clock of another machine, but tokens, certificates, deadlines in annotations
and everything that people read do. A clock is wrong only where no delay can explain what was seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trimtab.doctor.findings import Finding, Reason, count, listed, not_checked, warning, well
from trimtab.doctor.inventory import Lease, Seen, known, posix
from trimtab.ui.words import duration

LARGE_SECONDS = 5.0
"""What is told of; NTP keeps machines within a tenth of a second."""
FIX = "let NTP (chrony, systemd-timesyncd) keep the time there: `chronyc tracking`, `timedatectl`"


def here(seen: Seen) -> Iterator[Finding]:
    """This machine against the API server."""
    skew = seen.ahead
    if abs(skew) < LARGE_SECONDS:
        yield well(
            "this machine and the API server agree" + (f" within {duration(abs(skew))}" if abs(skew) >= 1 else "")
        )
        return
    way = "ahead of" if skew > 0 else "behind"
    message = (
        f"this machine's clock is {duration(abs(skew))} {way} the API server's: ages and start times look wrong here"
    )
    yield warning(Reason.CLOCK_HERE, message, FIX)


def controller(seen: Seen) -> Iterator[Finding]:
    """The leader against the API server: only where it was seen to renew is the time of that known."""
    looks = known(seen.lease)
    if len(looks) < 2:
        yield not_checked("the leader was not seen to renew its Lease", "a controller that leads")
        return
    age = looks[-1].age(seen.now)
    if age is not None and abs(age) > looks[-1].seconds:
        way = "behind" if age > 0 else "ahead of"
        message = f"the controller's clock is about {duration(abs(age))} {way} the API server's"
        yield warning(Reason.CLOCK_OF_CONTROLLER, message, FIX)
        return
    yield well("the controller and the API server agree")


def nodes(seen: Seen) -> Iterator[Finding]:
    """Kubelets against the API server, by the Leases that they renew every 10 s."""
    leases = {lease.metadata.name: lease for lease in known(seen.node_leases)}
    ready = {
        node.metadata.name
        for node in known(seen.nodes)
        if any(told.type == "Ready" and told.status == "True" for told in node.status.conditions)
    }
    told = {name: skew for name in ready if name in leases and (skew := _skew(leases[name], seen.now)) is not None}
    ahead = {name: skew for name, skew in told.items() if skew > 0}
    behind = {name: -skew for name, skew in told.items() if skew < 0}
    if ahead:
        yield _wrong(Reason.CLOCK_AHEAD, ahead, "ahead of")
    if behind:
        yield _wrong(Reason.CLOCK_BEHIND, behind, "behind")
    if not told:
        seen_to = len(ready & leases.keys())
        yield well(
            f"{count(seen_to, 'node')} and the API server agree" if seen_to else "no ready node has a Lease to judge by"
        )


def _wrong(reason: Reason, skews: Mapping[str, float], way: str) -> Finding:
    most = duration(max(skews.values()))
    message = f"clocks of {count(len(skews), 'node')} are {way} the API server's, by {most} at most: "
    return warning(reason, message + listed(list(skews)), FIX, [f"Node/{name}" for name in sorted(skews)])


def _skew(lease: Lease, now: float) -> float | None:
    """Seconds that a Ready node's clock is surely ahead (positive) or behind; None where it may be right.

    Its Lease is not older than it is good for, or the node would not be Ready; nor from the future.
    """
    renewed = posix(lease.spec.renew_time)
    if renewed is None:
        return None
    if renewed - now > LARGE_SECONDS:
        return renewed - now
    late = now - renewed - lease.seconds
    return -late if lease.seconds and late > LARGE_SECONDS else None
