"""The jobs of other kinds behind stand-ins: what they say, and the two things that are done to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab import names
from trimtab.apply.theirs import TheirJob
from trimtab.controller.cluster import Cluster
from trimtab.controller.other_jobs import MOST_SAID, OtherJob, resource_of
from trimtab.errors import NotFound
from trimtab.foreign.kinds import Json
from trimtab.foreign.tables import Kind, Rank
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import Meta, PodObject


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
            waiting=self._waiting(kind, row, job),
        )

    async def suspend(self, stand_in: Meta, why: str) -> None:
        """Suspend the job, with a note that its user has not. Raises ApiError where that is to be tried again."""
        await self._patch(stand_in, True, why[:MOST_SAID])

    async def resume(self, stand_in: Meta) -> None:
        """Let it go on. Raises ApiError where that is to be tried again."""
        await self._patch(stand_in, False, None)

    def _waiting(self, kind: str, row: Kind, job: OtherJob) -> dict[int, PodObject]:
        """Pods behind our gate, and no other, by rank."""
        jobs, found = self._cluster.other_jobs, dict[int, PodObject]()
        if jobs is None or row.rank is None:
            return found
        each, roles = job.pods_per_job(kind, row), job.ranks_of_roles(kind, row)
        for maker in jobs.makers(kind, row, job.itself(kind, row)):
            for pod in self._cluster.made_by(maker):
                rank = rank_of(pod.metadata.labels, row.rank, each, roles)
                gates = [gate.name for gate in pod.spec.scheduling_gates]
                if gates == [names.SCHEDULING_GATE] and rank is not None and not pod.metadata.deletion_timestamp:
                    found.setdefault(rank, pod)
        return found

    async def _patch(self, stand_in: Meta, suspend: bool, why: str | None) -> None:
        """A user who has suspended it meanwhile, or has resumed it, is not overruled: the version tells."""
        jobs = self._cluster.other_jobs
        found = jobs.controlling(stand_in) if jobs else None
        if jobs is None or found is None:
            raise NotFound(f"the job behind {stand_in.key} is gone")
        kind, row, job = found
        meta, resource = job.metadata, resource_of(row)
        patch: dict[str, Any] = {
            "metadata": {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "annotations": {names.ANNOTATION_SUSPENDED: why},
            },
            **_nested(row.suspend, suspend),
        }
        jobs.apply_written(kind, await self._client.merge_patch(resource.path(meta.namespace, meta.name), patch))


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


def _nested(path: str, value: bool) -> Json:
    first, *rest = path.split(".")
    return {first: _nested(".".join(rest), value) if rest else value}
