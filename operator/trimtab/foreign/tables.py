"""The tables of this package (`*.yaml` beside it), read once on first use, each with its shape."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import Struct, field

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Table = TypeVar("Table")
Names = dict[str, tuple[str, ...]]
"""Field -> what it is called."""


class Trainer(Struct, frozen=True, forbid_unknown_fields=True):
    """One trainer: how it is known, and what it calls things."""

    launcher: str
    """`spec.launcher` of an LLMTrainingJob that runs it."""
    programs: tuple[str, ...] = ()
    vague: tuple[str, ...] = ()
    """Programs whose name says little: one of the `hints` must occur in the rest of the job."""
    hints: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    """Arguments that no other trainer has: they tell it where the program's name does not."""
    names: Names = {}
    flags: dict[str, dict[str, str]] = {}
    implied: dict[str, dict[str, str]] = {}
    """What a stated field says besides."""
    data_only: bool = False
    """It knows data parallelism alone."""
    ignored: tuple[str, ...] = ()
    """Common names that mean something else here."""


class Trainers(Struct, frozen=True, forbid_unknown_fields=True):
    """`trainers.yaml`."""

    common: Names
    flags: dict[str, dict[str, str]]
    aside: tuple[str, ...]
    trainers: dict[str, Trainer]
    environment: Names
    counts: Names
    launchers: dict[str, Names]


class Hardware(Struct, frozen=True, forbid_unknown_fields=True):
    """`hardware.yaml`."""

    product_labels: tuple[str, ...]
    instance_labels: tuple[str, ...]
    instances: dict[str, str]
    products: dict[str, str]
    families: tuple[str, ...]
    unsupported: dict[str, str]


class Role(Struct, frozen=True, forbid_unknown_fields=True):
    """Pods of a job that do the same: paths in its object."""

    template: str
    count: tuple[str, ...] = ()
    lead: str = ""
    skip: tuple[str, ...] = ()


class Served(Struct, frozen=True, forbid_unknown_fields=True):
    """How the API server serves a kind."""

    version: str
    plural: str


class Controlled(Struct, frozen=True, forbid_unknown_fields=True):
    """Objects between a job and its pods: the job controls them, and they control its pods, or what does."""

    kind: str
    """Its row."""
    label: str = ""
    """That all of them have, so that no others need to be looked at; whose they are, their owner references say."""
    from_: str = field(default="", name="from")
    """Where its pods are described in these objects, and not in the job itself: what in the job says how they are."""


class Required(Struct, frozen=True, forbid_unknown_fields=True):
    """What has to stand in a field."""

    values: tuple[str, ...]
    """One of these."""
    why: str


class Place(Struct, frozen=True, forbid_unknown_fields=True):
    """What a job must say so that its pods can be a gang: paths in its object. `=` gives what counts where nothing
    stands there; `*` is that of the role that asks for GPUs, each of them where several do."""

    requires: dict[str, Required] = field(default_factory=dict)
    """Path -> what has to stand there."""
    same: dict[str, str] = field(default_factory=dict)
    """Path -> another one, with the same value."""
    without: dict[str, str] = field(default_factory=dict)
    """Path -> why nothing may stand there."""
    restarts: bool = False
    """Its own controller writes over restartPolicy of its pods what a field of the job says, one that it `requires`."""
    controls: Controlled | None = None
    """None where the job controls its pods itself."""
    stays: bool = False
    """It has no field that suspends it, and stays as it is: what is to go are its pods, whose maker makes others."""

    @property
    def describing(self) -> Controlled | None:
        """What describes its pods; None where the job itself does."""
        return self.controls if self.controls and self.controls.from_ else None


class Members(Struct, frozen=True, forbid_unknown_fields=True):
    """Pods that name an object as their group, whoever makes them. They describe themselves, and are counted by their
    names, for nobody knows what labels they have."""

    named: str
    """Path in a pod of the name of its group."""
    count: str
    """Path in the object of how many they are."""


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """What may be written into a job while it is suspended, so that its gang gets the shape of its plan."""

    count: tuple[str, ...]
    """Paths of how many pods the role has; `*` is that of the role."""
    role: str = ""
    """Of several that are one gang: the one whose number may change; empty where one role only is a gang."""
    gpus: bool = False
    """Whether the GPUs of a pod may change, too: in the templates of all these roles."""


class Rank(Struct, frozen=True, forbid_unknown_fields=True):
    """How a pod says which one it is. Where several Jobs have them, those of the first one come first."""

    label: str
    """Its number among the pods of its role, or of one Job of that."""
    job: str = ""
    """Label of the number of that Job; empty where there is one only."""
    size: str = ""
    """Path of how many pods each of these Jobs has."""
    role: str = ""
    """Label of its role, in small letters; empty where pods of one role only are a gang."""
    roles: tuple[str, ...] = ()
    """Those whose pods are one gang, the first ranks first."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """Labels that have numbers."""
        return tuple(filter(None, (self.job, self.label)))

    @property
    def labels(self) -> tuple[str, ...]:
        """All that it goes by."""
        return tuple(filter(None, (self.role, *self.numbers)))


class Kind(Struct, frozen=True, forbid_unknown_fields=True):
    """One row of `kinds.yaml`."""

    groups: tuple[str, ...]
    versions: tuple[str, ...] = ()
    """Of these groups; empty for all that no earlier row has."""
    kind: str = ""
    served: Served | None = None
    """None of what is read from files only."""
    roles: tuple[Role, ...] = ()
    members: Members | None = None
    """None of kinds that describe their pods."""
    runtime: bool = False
    entrypoint: str = ""
    processes: str = ""
    model: str = ""
    """Path of the model that is fetched for it."""
    queue: str = ""
    """Path of the queue of its own scheduler; empty where it has none."""
    priority: str = ""
    """Path of the PriorityClass of all pods; empty where only pods name one."""
    read_only: bool = False
    suspend: str = ""
    """Path of the field that suspends it; empty where the kind has none."""
    rank: Rank | None = None
    """None where pods do not say their ranks."""
    phase: str = ""
    """Path of the word that tells its state; empty where conditions do."""
    place: Place | None = None
    """None of kinds whose pods cannot be placed by Trimtab, or not yet."""
    shape: Shape | None = None
    """None of kinds whose number of pods cannot change."""
    conditions: dict[str, str] = field(default_factory=dict)
    """`succeeded`, `failed` and `suspended` -> what the kind calls it."""


@cache
def trainers() -> Trainers:
    """What trainers call things."""
    return _load("trainers.yaml", Trainers)


@cache
def hardware() -> Hardware:
    """What jobs say about accelerators."""
    return _load("hardware.yaml", Hardware)


@cache
def kinds() -> dict[str, Kind]:
    """Kinds of jobs by their name in messages."""
    return _load("kinds.yaml", dict[str, Kind])


def _load(name: str, shape: type[Table]) -> Table:
    text: Any = yaml.load((files("trimtab.foreign") / name).read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - safe
    return msgspec.convert(text, shape)
