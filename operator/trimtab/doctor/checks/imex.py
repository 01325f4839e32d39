"""NVLink between nodes: does the driver of ComputeDomains have the IMEX sessions of its nodes to itself?

A GPU driver has one IMEX session. Where a node runs NVIDIA's IMEX service by itself (static IMEX), the daemon of a
ComputeDomain cannot have it, and pods that claim a channel never start. No API tells of the service, but two things
show it: channels that the device plugin gives out, which are those of the service, and daemons that do not become
ready.
"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab import names
from trimtab.doctor.findings import Finding, Reason, count, listed, warning, well
from trimtab.doctor.inventory import Seen, known, posix
from trimtab.kube.objects import DeviceAttribute, ResourceSliceObject

PATIENCE_SECONDS = 300.0
"""In which a daemon becomes ready: its image is pulled, and its peers come."""
STATIC_CHANNELS = "IMEX_CHANNEL_IDS"
"""Setting of NVIDIA's device plugin: channels of the nodes' own service that it gives to every pod."""
DAEMON, READY = "daemon", "Ready"
_NONE = DeviceAttribute()
DISABLE = (
    "on these nodes, `systemctl disable --now nvidia-imex` and `systemctl mask nvidia-imex`; or let the driver use that"
    " service (its mode hostManaged)"
)


def sessions(seen: Seen) -> Iterator[Finding]:
    """Nodes whose IMEX session somebody else has, or seems to have."""
    domains, driven, plugins = known(seen.compute_domains), _driven(known(seen.slices)), known(seen.device_plugins)
    if not domains and not driven:
        yield well("no driver starts daemons for ComputeDomains")
        return
    static = {pod.spec.node_name for pod in plugins if pod.variable(STATIC_CHANNELS)} & driven
    if static:
        yield warning(
            Reason.STATIC_IMEX,
            f"{listed(sorted(static))}: the device plugin gives out channels of an IMEX service of the node, beside a"
            " driver that starts daemons of its own for ComputeDomains, and a node has one IMEX session",
            f"take {STATIC_CHANNELS} from the device plugin; {DISABLE}",
            [f"Node/{name}" for name in sorted(static)],
        )
    waiting: set[str] = set()
    for domain in domains:
        created = posix(domain.metadata.creation_timestamp)
        if created is not None and seen.now - created > PATIENCE_SECONDS:
            waiting |= {daemon.name for daemon in domain.status.nodes if daemon.status != READY}
    if waiting - static:
        about = sorted(waiting - static)
        yield warning(
            Reason.IMEX_DAEMON_NOT_READY,
            f"{listed(about)}: the daemon of a ComputeDomain has not been ready for {PATIENCE_SECONDS / 60:.0f}"
            " minutes; mostly because the node runs NVIDIA's IMEX service by itself, and a node has one IMEX session",
            f"see the logs of the daemon's pod; if `systemctl status nvidia-imex` says that it runs: {DISABLE}",
            [f"Node/{name}" for name in about],
        )
    if not static and not waiting:
        yield well(f"{count(len(driven), 'node')} with daemons for ComputeDomains")


def _driven(slices: tuple[ResourceSliceObject, ...]) -> set[str]:
    """Nodes on which the driver starts daemons."""
    return {
        each.spec.node_name
        for each in slices
        if each.spec.driver == names.COMPUTE_DOMAIN_DRIVER
        and any(device.attributes.get("type", _NONE).string == DAEMON for device in each.spec.devices)
    }
