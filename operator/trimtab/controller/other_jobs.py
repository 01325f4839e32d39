"""A copy of the training jobs of other kinds that have a label of ours, for as long as their kinds are served."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import groupby
from typing import Literal

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import force_setattr

from trimtab import names
from trimtab.foreign import shape
from trimtab.foreign.kinds import Json, at, end_of, has_ended, pods_of, rests, row_of, valued, whole
from trimtab.foreign.tables import Kind, kinds
from trimtab.kube.client import KubeClient, MetadataOnly
from trimtab.kube.metrics_hooks import FactsObserver
from trimtab.kube.objects import AnyObject, Controlling, Meta, OwnerReference
from trimtab.kube.owned import ControlledObjects
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import Resource
from trimtab.kube.served_kinds import ServedKinds
from trimtab.settings import ReflectorSettings

MOST_PER_NAMESPACE = 100
"""Jobs of one namespace that are looked at in turn; the oldest come first."""
MOST_SAID = 1000
"""Characters of an annotation that says why."""
MOST_BYTES = 90_000
"""Of a job, or of what describes its pods, as it is sent: admission takes fewer (`maxJobBytes`, 73,728), where it is
installed, and its controller and ours add a little."""
_STATED = frozenset((*names.STATED.values(), names.ANNOTATION_QUEUE))
_KEPT = _STATED | frozenset(names.ADVICE.values()) | frozenset(names.PLACE)


class OtherMeta(Meta, frozen=True, rename="camel", eq=False, dict=True):
    """metav1.ObjectMeta, with the annotations that state something about the training, and those that we write."""

    def __post_init__(self) -> None:
        if self.annotations and not _KEPT.issuperset(self.annotations):
            known = {name: value for name, value in self.annotations.items() if name in _KEPT}
            force_setattr(self, "annotations", known)


class OtherJob(Struct, frozen=True, dict=True):
    """A training job of another kind as the API server sends it."""

    metadata: OtherMeta
    spec: Raw = Raw(b"{}")
    status: Raw = Raw(b"{}")

    @property
    def too_large(self) -> str:
        """Why it is not read; empty for nearly all."""
        return too_large("spec", len(bytes(self.spec))) or too_large(
            "metadata.annotations", sum(len(each) for each in self.metadata.annotations.values())
        )

    @cached_property
    def digest(self) -> str:
        """Of all that an advice depends on that the job itself says."""
        stated = sorted(each for each in self.metadata.annotations.items() if each[0] in _STATED)
        return hashlib.sha256(bytes(self.spec) + msgspec.json.encode(stated)).hexdigest()[:16]

    @cached_property
    def _said(self) -> Json:
        """Its status. Kept: it is asked every second whether it has ended."""
        return {"status": msgspec.json.decode(self.status)}

    def itself(self, kind: str, row: Kind) -> Controlling:
        """How those that it controls name it."""
        return named(kind, row, self.metadata)

    def reference(self, kind: str, row: Kind) -> dict[str, str]:
        """What names the object to others: of whom an event is, or whose something is."""
        meta = self.metadata
        return {
            "apiVersion": resource_of(row).api_version,
            "kind": row.kind or kind,
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        }

    def document(self, kind: str, row: Kind) -> Json:
        """The object as a manifest would have it."""
        meta = self.metadata
        stated = {name: value for name, value in meta.annotations.items() if name in _STATED}
        return {
            "apiVersion": resource_of(row).api_version,
            "kind": row.kind or kind,
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "annotations": stated},
            "spec": msgspec.json.decode(self.spec),
        }

    def given(self, kind: str, row: Kind) -> shape.Given:
        """The job as its user has it, without what Trimtab has written into it."""
        return shape.given(
            self.document(kind, row), kind, row, self.metadata.annotations.get(names.ANNOTATION_SHAPED, "")
        )

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, int] | None]:
        """By kind, of which it has one. Kept: it is asked whenever its gang is looked at."""
        return {}

    def shape(self, kind: str, row: Kind) -> tuple[int, int] | None:
        """Pods of its gang now, and GPUs of each, where Trimtab chooses both; None where they are its user's."""
        if row.shape is None or not {names.STATED["gpus"], names.ANNOTATION_SHAPED} & self.metadata.annotations.keys():
            return None
        if kind not in self._shapes:
            ours = self.given(kind, row).choice == "ours"
            self._shapes[kind] = shape.shape_of(self.document(kind, row), kind, row) if ours else None
        return self._shapes[kind]

    def rests(self, row: Kind) -> bool:
        """Whether its own controller says that it is suspended: its pods are gone, or go."""
        return self.suspended(row) and rests(self._said, row)

    def end(self, row: Kind) -> tuple[Literal["", "succeeded", "failed"], str]:
        """How it has ended by its own controller's word, and what that says of it; empty while it has not."""
        return end_of(self._said, row)

    def ended(self, row: Kind) -> bool:
        """Whether it is over, or about to be."""
        return bool(self.metadata.deletion_timestamp) or has_ended(self._said, row)

    @cached_property
    def _asked(self) -> Json:
        return {"spec": msgspec.json.decode(self.spec)}

    def suspended(self, row: Kind) -> bool:
        """Whether it is to have no pods for now."""
        return at(self._asked, row.suspend) is True

    def members(self, row: Kind) -> int | None:
        """How many pods it is to have that name it as their group; None where that is not how its pods are known, or it
        does not say it."""
        return whole(at(self._asked, row.members.count)) if row.members else None

    def pods_per_job(self, kind: str, row: Kind) -> int:
        """How many pods of its gang each of its Jobs has; 0 where it has no Jobs, or does not say that."""
        if not (row.rank and row.rank.size):
            return 0
        keys = next((pods.keys for pods in pods_of(self._asked, kind, row, ()) if pods.accelerators), ())
        return whole(valued(self._asked, row.rank.size, keys)) or 0

    def ranks_of_roles(self, kind: str, row: Kind) -> dict[str, range]:
        """Which ranks the pods of a role have, by its name in small letters, as labels have it; empty where pods of one
        role only are a gang."""
        found, first = dict[str, range](), 0
        roles = row.rank.roles if row.rank else ()
        counts = {pods.role: pods.count or 0 for pods in pods_of(self._asked, kind, row, ()) if pods.accelerators}
        for role in roles:
            found[role.lower()] = range(first, first := first + counts.get(role, 0))
        return found

    @property
    def follows(self) -> str:
        """The training job of a known kind that controls it, which is advised in its place; empty for most."""
        for owner in self.metadata.owner_references:
            if owner.controller and row_of({"apiVersion": owner.api_version, "kind": owner.kind}):
                return f"{owner.kind} {owner.name}"
        return ""


def too_large(what: str, size: int) -> str:
    """Why something that is so many bytes large is not read; empty where it is."""
    asks = "put files into a ConfigMap or the image"
    return f"{what}: it has {size:,} bytes, and at most {MOST_BYTES:,} are read: {asks}" if size > MOST_BYTES else ""


def resource_of(row: Kind) -> Resource:
    """Where the API server serves a kind that its row says is served."""
    if row.served is None:
        raise ValueError("the row does not say how the kind is served")
    return Resource(f"{row.groups[0]}/{row.served.version}", row.served.plural)


def versions_of(owner: OwnerReference) -> Iterator[tuple[str, Kind]]:
    """The rows of what controls an object, the one of its version first; none where that is no controller."""
    group = owner.api_version.partition("/")[0]
    found = row_of({"apiVersion": owner.api_version, "kind": owner.kind}) if owner.controller else None
    if found is None:
        return
    yield found
    for name, row in kinds().items():
        if name != found[0] and group in row.groups and (row.kind or name) == owner.kind:
            yield name, row


def named(kind: str, row: Kind, meta: Meta) -> Controlling:
    """How those that an object of a kind controls name it."""
    return Controlling(row.groups[0], row.kind or kind, meta.key, meta.uid)


class OtherJobs:
    """Jobs of all kinds that are served, with a label that is `true`. `on_change` is called for every change."""

    def __init__(
        self,
        client: KubeClient,
        settings: ReflectorSettings,
        on_change: Callable[[], None],
        observer: FactsObserver,
        label: str,
        wanted: Callable[[Kind], bool] = lambda row: True,
        *,
        pods: bool = False,
    ) -> None:
        """`wanted` says of which kinds, by their rows; `pods` whether their pods are looked for."""
        self.on_change = on_change
        self._kinds: dict[str, tuple[Kind, Reflector[OtherJob], ServedKinds]] = {}
        self._controlled: dict[str, tuple[ControlledObjects, Reflector[AnyObject]]] = {}
        """Kind -> objects between its jobs and their pods, where there are any, and somebody wants to know."""
        for name, row in kinds().items():
            if row.served is None or not wanted(row):
                continue
            reflector: Reflector[OtherJob] = Reflector(
                client,
                resource_of(row),
                OtherJob,
                settings,
                on_change=lambda old, new: on_change(),
                labels=f"{label}=true",
                observer=observer,
            )
            between = self._between(name, row, client, settings, on_change, observer) if pods else None
            served = ServedKinds(client, name, on_change, reflector, beside=[between] if between else [])
            self._kinds[name] = row, reflector, served

    def _between(
        self,
        name: str,
        row: Kind,
        client: KubeClient,
        settings: ReflectorSettings,
        on_change: Callable[[], None],
        observer: FactsObserver,
    ) -> Reflector[AnyObject] | None:
        """What follows the objects that jobs of a kind control, and that are not their pods."""
        controls = row.place.controls if row.place else None
        if controls is None:
            return None
        index = ControlledObjects(on_change)
        reflector: Reflector[AnyObject] = Reflector(
            MetadataOnly(client),
            resource_of(kinds()[controls.kind]),
            AnyObject,
            settings,
            on_change=index.changed,
            labels=controls.label,
            observer=observer,
        )
        self._controlled[name] = index, reflector
        return reflector

    async def run(self) -> None:
        """Follow all kinds until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, (_, _, served) in self._kinds.items():
                tasks.create_task(served.run(), name=f"reflect {name}")

    def all(self) -> Iterator[tuple[str, Kind, OtherJob]]:
        """Those that have not ended, of each namespace the oldest; namespaces take turns."""
        found = [
            (job.metadata.namespace, job.metadata.creation_timestamp or "", job.metadata.uid, name, row, job)
            for name, (row, reflector, _) in self._kinds.items()
            for job in reflector.items.values()
            if not job.ended(row)
        ]
        found.sort(key=lambda each: each[:3])
        turns = []
        for _, jobs in groupby(found, key=lambda each: each[0]):
            turns += [(turn, *each[3:]) for turn, each in enumerate(jobs) if turn < MOST_PER_NAMESPACE]
        turns.sort(key=lambda each: each[0])
        for _, name, row, job in turns:
            yield name, row, job

    def controlling(self, meta: Meta) -> tuple[str, Kind, OtherJob] | None:
        """The job that controls an object, by the UID in its owners; None where it is not among these. Of what version
        the owner is told to be does not matter: a cluster that is upgraded may serve another one."""
        for owner in meta.owner_references:
            for name, row in versions_of(owner):
                followed = self._kinds.get(name)
                job = followed[1].items.get(f"{meta.namespace}/{owner.name}") if followed else None
                if job is not None and job.metadata.uid == owner.uid:
                    return name, row, job
        return None

    def placing(self, maker: Controlling) -> tuple[str, OtherJob] | None:
        """The job whose pods this one makes, and its kind; None where it makes those of none of these. A group makes
        no pods."""
        for name, row, job in self.all():
            if row.members is None and maker in self.makers(name, row, job.itself(name, row)):
                return name, job
        return None

    def controls(self, kind: str, job: Controlling) -> tuple[Meta, ...]:
        """Objects between a job of a kind and its pods that it controls, without those that are going."""
        found = self._controlled[kind][0].of(job) if kind in self._controlled else ()
        return tuple(each for each in found if not each.deletion_timestamp)

    def pods_known(self, kind: str) -> bool:
        """Whether all that is between jobs of a kind and their pods has been listed."""
        if kind not in self._controlled:
            return True
        row = kinds()[kind]
        below = row.place.controls.kind if row.place and row.place.controls else ""
        return self._controlled[kind][1].synced.is_set() and self.pods_known(below)

    def makers(self, kind: str, row: Kind, job: Controlling) -> Iterator[Controlling]:
        """What controls the pods of a job of a kind: the job itself, or what it controls, or what that controls. Pods
        name their group without its UID."""
        if row.members:
            yield job._replace(uid="")
            return
        between = row.place.controls if row.place else None
        if between is None:
            yield job
            return
        below = kinds()[between.kind]
        for each in self.controls(kind, job):
            yield from self.makers(between.kind, below, named(between.kind, below, each))

    def apply_written(self, kind: str, content: bytes) -> None:
        """Take the answer to a write of ours at once."""
        self._kinds[kind][1].apply_written(content)
