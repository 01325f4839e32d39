"""The jobs of other kinds behind stand-ins: what they say, and the two things that are done to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trimtab import names
from trimtab.apply.theirs import TheirJob
from trimtab.apply.write import WriteRefused, merge_patch
from trimtab.controller.cluster import Cluster
from trimtab.controller.other_jobs import MOST_SAID, OtherJob, resource_of
from trimtab.errors import Forbidden, Invalid, NotFound
from trimtab.foreign.kinds import Json
from trimtab.foreign.shape import written
from trimtab.foreign.tables import Kind, Rank
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import Controlling, Meta, PodObject


class TheirJobs:
    """What `trimtab.apply.theirs` depends on, by what the caches show; and its writes."""

    def __init__(self, client: KubeClient, cluster: Cluster) -> None:
        self._client = client
        self._cluster = cluster

    def of(self, stand_in: Meta) -> TheirJob | None:
        """The job behind a stand-in; None where it is not known: gone, not labelled any more, or not listed yet, or
        what is between it and its pods is not."""
        jobs = self._cluster.other_jobs
        found = jobs.controlling(stand_in) if jobs else None
        if jobs is None or found is None or not jobs.pods_known(found[0]):
            return None
        kind, row, job = found
        end, message = job.end(row)
        return TheirJob(
            suspended=job.suspended(row),
            by_us=names.ANNOTATION_SUSPENDED in job.metadata.annotations,
            end=end,
            message=message,
            rests=job.rests(row),
            stays=row.place is not None and row.place.stays,
            numbered=row.members is None,
            shape=job.shape(kind, row),
            orphans=frozenset()
            if row.members
            else self._orphans(stand_in, set(jobs.makers(kind, row, job.itself(kind, row)))),
            waiting=self._waiting(kind, row, job),
        )

    async def suspend(self, stand_in: Meta, why: str) -> None:
        """Suspend the job, with a note that its user has not. Raises ApiError where that is to be tried again."""
        await self._write(*self._found(stand_in), True, why[:MOST_SAID])

    async def resume(self, stand_in: Meta, shape: tuple[int, int] | None = None) -> None:
        """Let it go on, with so many pods of so many GPUs where that is said, and a note of what stood there. Raises
        ApiError where that is to be tried again, WriteRefused where the API server does not take that shape."""
        kind, row, job = self._found(stand_in)
        if shape is None:
            await self._write(kind, row, job, False, None)
            return
        before, note = job.document(kind, row), job.metadata.annotations.get(names.ANNOTATION_SHAPED, "")
        after, note_after = written(before, kind, row, note, *shape)
        changed = merge_patch(before["spec"], after["spec"])
        try:
            await self._write(kind, row, job, False, None, {names.ANNOTATION_SHAPED: note_after}, changed)
        except (Forbidden, Invalid) as error:
            raise WriteRefused("ShapeRefused", f"{shape[0]} pods of {shape[1]} GPUs: {error}") from error

    def _found(self, stand_in: Meta) -> tuple[str, Kind, OtherJob]:
        jobs = self._cluster.other_jobs
        if jobs is None or (found := jobs.controlling(stand_in)) is None:
            raise NotFound(f"the job behind {stand_in.key} is gone")
        return found

    def _orphans(self, stand_in: Meta, makers: set[Controlling]) -> frozenset[str]:
        """Pods of the gang that none of these controls."""
        gang = self._cluster.pods_of(stand_in.identity.digest)
        return frozenset(pod.metadata.uid for pod in gang if pod.metadata.controller not in makers)

    def _waiting(self, kind: str, row: Kind, job: OtherJob) -> dict[int, PodObject]:
        """Pods behind our gate, and no other, by rank; those of a group in the order of their names."""
        jobs, found = self._cluster.other_jobs, dict[int, PodObject]()
        if jobs is None:
            return found
        if row.members:
            named = (
                pod for group in jobs.makers(kind, row, job.itself(kind, row)) for pod in self._cluster.made_by(group)
            )
            return dict(enumerate(sorted(filter(waits, named), key=lambda pod: in_order(pod.metadata.name))))
        if row.rank is None:
            return found
        each, roles = job.pods_per_job(kind, row), job.ranks_of_roles(kind, row)
        for maker in jobs.makers(kind, row, job.itself(kind, row)):
            for pod in self._cluster.made_by(maker):
                rank = rank_of(pod.metadata.labels, row.rank, each, roles)
                if rank is not None and waits(pod):
                    found.setdefault(rank, pod)
        return found

    async def _write(
        self,
        kind: str,
        row: Kind,
        job: OtherJob,
        suspend: bool,
        why: str | None,
        notes: Mapping[str, str | None] | None = None,
        spec: Json | None = None,
    ) -> None:
        """A user who has suspended it meanwhile, or has resumed it, is not overruled: the version tells."""
        meta, resource = job.metadata, resource_of(row)
        patch: dict[str, Any] = {
            "metadata": {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "annotations": {names.ANNOTATION_SUSPENDED: why, **(notes or {})},
            },
            "spec": spec or {},
        }
        _put(patch, row.suspend, suspend)
        answer = await self._client.merge_patch(resource.path(meta.namespace, meta.name), patch)
        if jobs := self._cluster.other_jobs:
            jobs.apply_written(kind, answer)


def waits(pod: PodObject) -> bool:
    """Whether a pod is for us to place, and waits for nobody else."""
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    ours = gates == [names.SCHEDULING_GATE] and pod.metadata.labels.get(names.LABEL_MANAGED) == "true"
    return ours and not pod.metadata.deletion_timestamp


def in_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts names with numbers in them as one counts.

    >>> sorted(["train-10", "train-9", "train-1-x"], key=in_order)
    ['train-1-x', 'train-9', 'train-10']
    """
    parts = re.split(r"([0-9]+)", name)  # texts and numbers take turns
    words = [
        (0, part) if number % 2 == 0 else (len(part.lstrip("0")), part.lstrip("0")) for number, part in enumerate(parts)
    ]
    return words, name


def rank_of(labels: Mapping[str, str], rank: Rank, each: int, roles: Mapping[str, range]) -> int | None:
    """The rank in its gang of a pod with these labels, `each` pods to a Job, or with these ranks for each role; None
    where they do not say it."""
    said = [labels.get(label, "") for label in rank.numbers]
    if not all(number.isdecimal() for number in said):
        return None
    *of_job, index = map(int, said)
    if rank.role:
        ranks = roles.get(labels.get(rank.role, ""), range(0))
        return ranks[index] if index < len(ranks) else None
    if not of_job:
        return index
    return of_job[0] * each + index if index < each else None


def _put(patch: Json, path: str, value: bool) -> None:
    *parents, last = path.split(".")
    for name in parents:
        patch = patch.setdefault(name, {})
    patch[last] = value
