"""`trimtab explain JOB --why-not 32xH100`: what speaks against other GPUs for a job.

The same rules and figures that decide are asked about just these GPUs: what the job allows, where it fits, until when
others hold them, how fast it would be, and what the policy makes of it beside what the job has or would get.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from trimtab.commands.planning import decide
from trimtab.errors import UsageError
from trimtab.ui.explain import Objection, WantedGpus
from trimtab_policy import catalog
from trimtab_policy.placement.candidates import Candidate, candidates, has_room
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.pending_reasons import why_pending
from trimtab_policy.policy import Weighs, load
from trimtab_policy.scheduling.etas import expected_starts
from trimtab_policy.types import Alternative, Bounds, Eta, Job, Pending, Placement, Snapshot

OPTION = "--why-not"
FORM = "write COUNTxTYPE, such as 32xH100, or a type or a number of GPUs alone"
_WRITTEN = re.compile(
    r"(?:(?P<gpus>\d{1,7})(?:\s*[x×*]\s*|\s+|$))?(?P<type>[A-Za-z][\w.-]*)?", re.IGNORECASE | re.ASCII
)
_COMMON = 0.01
"""A difference in speed or GPUs that is none."""


def wanted(text: str, types: Iterable[str]) -> WantedGpus:
    """Read `32xH100`, `32×H100-SXM5-80GB`, `32 h100`, `H100`, `32`. Raises UsageError naming the option."""
    match = _WRITTEN.fullmatch(text.strip())
    if not match or not (match["gpus"] or match["type"]):
        raise UsageError(f"{OPTION} {text!r}: {FORM}")
    gpus = int(match["gpus"] or 0)
    if match["gpus"] and gpus < 1:
        raise UsageError(f"{OPTION} {text!r}: a job has at least one GPU; {FORM}")
    return WantedGpus(_known(text, match["type"], sorted(types)) if match["type"] else "", gpus)


def _known(text: str, said: str, types: list[str]) -> str:
    """The type of the cluster that is meant."""
    meant = catalog.meant(said, types)
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise UsageError(f"{OPTION} {text!r}: that may be {' or '.join(meant)}: name one")
    raise UsageError(f"{OPTION} {text!r}: the cluster has no {said}; it has {', '.join(types) or 'no GPUs'}")


def objection(now: Snapshot, alone: Snapshot, job: Job, asked: WantedGpus, policy: str) -> Objection:
    """Why a job has not, or would not get, these GPUs.

    `now` is the cluster with all that run and wait; `alone` the same as if `job` (of `alone`) held nothing and nobody
    else waited. Raises UsageError when the policy fails.
    """
    forbidden = _forbidden(job, asked)
    only = _restricted(job, asked)
    capacity = Capacity(alone)
    known = sorted(candidates(alone, capacity, only), key=lambda each: -each.tokens_per_second)
    best = next((each for each in known if has_room(capacity, only, each)), known[0] if known else None)
    found = Objection(asked, ())
    if best:
        found = replace(found, plan=best.option.plan, prediction=best.option.prediction)
    if best is None or not has_room(capacity, only, best):
        pending = why_pending(alone, capacity, only)
        said = (*forbidden, f"{pending.reason.value}: {pending.message}", *_blocked(pending))
        return replace(found, because=said, helps=pending.alternatives, start=_start(alone, only, pending))
    if forbidden:
        return replace(found, because=(*forbidden, "there would be room for it now"))
    return replace(found, because=tuple(_weighed(now, alone, job, best, policy)))


def _forbidden(job: Job, asked: WantedGpus) -> list[str]:
    """What the job's own spec has against it."""
    needs, said = job.requirements, []
    if asked.gpu_type and needs.gpu_types and asked.gpu_type not in needs.gpu_types:
        said.append(f"spec.resources.gpuTypes allows only {', '.join(needs.gpu_types)}")
    if asked.gpus and not needs.gpus.admits(asked.gpus):
        low, high = needs.gpus.low, needs.gpus.high
        said.append(f"spec.resources.gpus allows {low if low == high else f'{low} to {high}'}, not {asked.gpus}")
    return said


def _restricted(job: Job, asked: WantedGpus) -> Job:
    """The job as if it allowed nothing else."""
    needs = job.requirements
    types = (asked.gpu_type,) if asked.gpu_type else needs.gpu_types
    gpus = Bounds(asked.gpus, asked.gpus) if asked.gpus else needs.gpus
    return replace(job, requirements=replace(needs, gpu_types=types, gpus=gpus))


def _blocked(pending: Pending) -> list[str]:
    return [f"in the way: {', '.join(pending.blockers)}"] if pending.blockers else []


def _start(alone: Snapshot, only: Job, pending: Pending) -> Eta | None:
    """When a job could begin that is the only one to wait."""
    seen = replace(alone, jobs=tuple(only if each.uid == only.uid else each for each in alone.jobs))
    return expected_starts(seen, [pending]).get(only.uid)


def _weighed(now: Snapshot, alone: Snapshot, job: Job, option: Candidate, policy: str) -> Iterable[str]:
    """What the policy makes of it, where there is room."""
    held = next((each.placement for each in now.jobs if each.uid == job.uid), None)
    mine = held or decide(alone, job, policy).placement
    what = f"{option.option.gpus}×{option.gpu.name}"
    if mine and (mine.gpu_type, mine.gpus) == (option.gpu.name, option.option.gpus):
        yield f"nothing: the job {'has' if held else 'would get'} {what}"
        return
    yield f"there is room for {what}" + (f"; the job {'has' if held else 'would get'} {_of(mine)}" if mine else "")
    if mine:
        yield _compared(option, mine)
    decides = load(policy)
    if isinstance(decides, Weighs) and (said := decides.weigh(now, job.uid, option.gpu.name, option.option.gpus)):
        yield f"{policy}: {said}"
    elif mine and (named := next((each for each in mine.alternatives if _same(each, option)), None)):
        yield f"{policy}: {named.why_not}"
    if held and not (job.elastic or job.preemptible):
        yield "the job runs and may not be moved for its own good (spec.elasticity.policy: Fixed)"


def _of(placement: Placement) -> str:
    return f"{placement.gpus}×{placement.gpu_type}"


def _same(other: Alternative, option: Candidate) -> bool:
    return (other.gpu_type, other.gpus) == (option.gpu.name, option.option.gpus)


def _compared(option: Candidate, mine: Placement) -> str:
    """How fast it would be beside what the job has, and for how many GPUs."""
    speed = option.tokens_per_second / mine.prediction.tokens_per_second
    gpus = option.option.gpus / mine.gpus
    how = "as fast" if abs(speed - 1) < _COMMON else f"{speed:.2f} times as fast"
    return f"predicted to be {how}" + ("" if abs(gpus - 1) < _COMMON else f", with {gpus:.3g} times the GPUs")
