"""Which pods are whose: an index from jobs to their pods, which the reflector of pods feeds."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

from trimtab import names
from trimtab.kube.objects import Controlling, Identity, PodObject

Key = TypeVar("Key", bound=Hashable)


class PodsByJob:
    """Keys (`namespace/name`) of the pods of our jobs' gangs, and of those that wait to be of one. Nothing is kept
    empty."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, str]] = {}
        """Digest of a job's identity -> UID of a pod of its gang -> its key."""
        self._owners: dict[str, Identity] = {}
        """Digest of a job's identity -> that, of all jobs that pods say they belong to."""
        self._job_of: dict[str, str] = {}
        """Key of a pod -> `namespace/name` of the job whose gang it is of."""
        self._made_by: dict[Controlling, dict[str, str]] = {}
        """A job of another kind, or what has its pods -> UID of a pod that it controls, and that is of no gang -> its
        key. So does a group with the pods that name it."""

    def of(self, job: str) -> Iterator[str]:
        """Pods that the job with this digest of its identity has."""
        return iter(self._of.get(job, {}).values())

    def made_by(self, maker: Controlling) -> Iterator[str]:
        """Pods of no gang yet that a job of another kind, or what has its pods, controls, and that are for Trimtab to
        place; or that name a group."""
        return iter(self._made_by.get(maker, {}).values())

    def job_of(self, pod: str) -> str:
        """`namespace/name` of the job whose gang the pod with this key is of; empty where it is of none."""
        return self._job_of.get(pod, "")

    @property
    def owners(self) -> Mapping[str, Identity]:
        """Jobs that pods say they belong to, by the digest of their identity."""
        return self._owners

    def changed(self, old: PodObject | None, new: PodObject | None) -> None:
        """Take news of a pod: None stands for not being there."""
        if old:
            if job := old.metadata.job:
                _drop(self._of, job.digest, old.metadata.uid)
                self._job_of.pop(old.metadata.key, None)
                if job.digest not in self._of:
                    del self._owners[job.digest]
            else:
                for maker in _makers_of(old):
                    _drop(self._made_by, maker, old.metadata.uid)
        if new:
            if job := new.metadata.job:
                self._owners[job.digest] = job
                self._job_of[new.metadata.key] = job.key
                self._of.setdefault(job.digest, {})[new.metadata.uid] = new.metadata.key
            else:
                for maker in _makers_of(new):
                    self._made_by.setdefault(maker, {})[new.metadata.uid] = new.metadata.key


def _drop(index: dict[Key, dict[str, str]], of: Key, uid: str) -> None:
    del index[of][uid]
    if not index[of]:
        del index[of]


def _makers_of(pod: PodObject) -> Iterator[Controlling]:
    """What has made a pod for Trimtab to place: a job of another kind, or what has its pods; and the group that a pod
    names, be it for Trimtab to place or not: it may lack the label by mistake, and that is told."""
    if pod.metadata.labels.get(names.LABEL_MANAGED) == "true" and (maker := pod.metadata.controller):
        yield maker
    if group := pod.group:
        yield group
