"""Kueue: is it there, in a version that we know, and is it what jobs expect?"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab import names
from trimtab.doctor.findings import Finding, Reason, some, warning, well
from trimtab.doctor.inventory import Seen, known
from trimtab.kube.resources import WORKLOADS


def version(seen: Seen) -> Iterator[Finding]:
    """Whether the version of its API that we read is served, and whether jobs ask for a Kueue that is not there."""
    served, ours = known(seen.kueue), WORKLOADS.api_version.partition("/")[2]
    asking = [
        job.metadata.key
        for job in (seen.jobs if isinstance(seen.jobs, tuple) else ())
        if job.metadata.labels.get(names.LABEL_KUEUE_QUEUE)
    ]
    if seen.settings.interop.kueue == "Never":
        yield well("not asked (interop.kueue is Never)")
    elif served and ours not in served:
        message = f"Kueue serves {some(served)}, and Trimtab reads {ours}: its queues are not asked"
        fix = "upgrade Kueue to 0.15 or newer; or set TRIMTAB_INTEROP__KUEUE=Never, and take the label off jobs"
        yield warning(Reason.KUEUE_UNKNOWN, message, fix, [f"{names.JOB_KIND}/{key}" for key in asking])
    elif not served and asking:
        message = f"jobs name queues of Kueue, which is not installed: {some(asking)} start without it"
        fix = f"install Kueue 0.15 or newer, or take the label {names.LABEL_KUEUE_QUEUE} off them"
        yield warning(Reason.KUEUE_MISSING, message, fix, [f"{names.JOB_KIND}/{key}" for key in asking])
    else:
        yield well(f"{ours} is served" if served else "not installed, and no job asks for it")
