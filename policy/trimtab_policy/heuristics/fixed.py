"""The fixed policy: one action for every state, the baseline of Dadizadeh Dargiry (2025).

The paper's action space is GPU count × {Data, Model, Hybrid}; its fixed policy always takes the same action. Here that
action is `gpus` GPUs in mode `mode`, clamped to what the job allows. Because a constant action may not fit a job in
memory at all, the constants next to it follow in a fixed order (the next mode, then twice the GPUs), still without a
look at load or speed: the first GPU type by name and the first nodes with room are taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trimtab_policy.placement.candidates import Candidate, candidates, placement, with_room
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.placement.queueing import serve
from trimtab_policy.policy import Kind
from trimtab_policy.specs import Mode
from trimtab_policy.types import Decision, Job, Placement, Snapshot


class Fixed:
    """Always the same count and mode, whatever the state."""

    name = "fixed"
    kind = Kind.RULE
    source = "Dadizadeh Dargiry, MSES 2025 (baseline)"

    def __init__(self, gpus: int = 4, mode: Mode = Mode.DATA) -> None:
        modes = list(Mode)
        start = modes.index(mode)
        self.gpus = gpus
        self.modes = modes[start:] + modes[:start]

    def decide(self, snapshot: Snapshot) -> Decision:
        """Apply the constant action to every waiting job, in order of arrival."""
        return serve(self.name, snapshot, Capacity(snapshot), snapshot.waiting(), self._apply)

    def _apply(self, snapshot: Snapshot, capacity: Capacity, job: Job) -> Placement | None:
        known = _in_modes(snapshot, capacity, job, self.modes)
        for candidate, shares in with_room(capacity, job, sorted(known, key=lambda found: self._rank(job, found))):
            action = f"{self.gpus} GPUs, mode {self.modes[0]}"
            reason = f"{candidate.describe_with_plan()}: nearest to the fixed action {action}"
            return placement(capacity, job, candidate, shares, reason)
        return None

    def _rank(self, job: Job, candidate: Candidate) -> tuple[int, int, str, int]:
        """Order of preference: nearest count (larger first), mode in its fixed order, type by name, fewest nodes."""
        option = candidate.option
        wanted = min(max(self.gpus, job.requirements.gpus.low), job.requirements.gpus.high)
        distance = option.gpus - wanted if option.gpus >= wanted else (wanted - option.gpus) << 20
        return distance, self.modes.index(option.plan.mode), candidate.gpu.name, option.nodes


def _in_modes(snapshot: Snapshot, capacity: Capacity, job: Job, modes: Sequence[Mode]) -> list[Candidate]:
    """The fastest plans of every mode: without the others, so that none is left out for a faster one."""
    if job.speeds is not None:
        return candidates(snapshot, capacity, job)
    allowed = [mode for mode in modes if mode in job.requirements.modes]
    return [found for mode in allowed for found in candidates(snapshot, capacity, _only(job, mode))]


def _only(job: Job, mode: Mode) -> Job:
    """The job as if it allowed no other mode."""
    return replace(job, requirements=replace(job.requirements, modes=(mode,)))
