"""The pod template: the user's pod, minus everything that the plan decides.

Declared are the fields that Trimtab reads or must refuse; all others are kept as they are. What the plan sets may not
be set here, because a silent override would surprise: each such field is refused by a rule that says where it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from trimtab.api.base import AnyObject, ApiModel, Int64, JsonSchema, Quantity, Text, extra, rule, rules
from trimtab.names import ACCELERATORS, GROUP, TRAINER_CONTAINER

Label = Annotated[str, StringConstraints(max_length=63)]
LongString = Annotated[str, StringConstraints(max_length=16384)]
ContainerName = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]

_ACCELERATORS = "[" + ", ".join(f"'{beginning}'" for beginning in ACCELERATORS) + "]"
_PLAN_ENV = "['PET_NNODES', 'PET_NPROC_PER_NODE', 'PET_NODE_RANK', 'PET_MASTER_ADDR']"


class OpenModel(ApiModel):
    """A part of a pod: fields that are not declared here are kept."""

    model_config = ConfigDict(extra="allow")


def _refused(field: str, why: str) -> JsonSchema:
    return rule(f"!has(self.{field})", f"{field} may not be set: {why}", f".{field}")


def _no_gpus(table: str) -> JsonSchema:
    return rule(
        f"!has(self.{table}) || !self.{table}.exists(k, {_ACCELERATORS}.exists(gpu, k.startsWith(gpu)))",
        "GPUs may not be requested in the template: the plan sets them, within spec.resources.gpus",
        f".{table}",
    )


class EnvVar(OpenModel):
    """One environment variable."""

    model_config = rules(
        rule(
            f"!(self.name.startsWith('TRIMTAB_') || self.name in {_PLAN_ENV})",
            "this variable is set by the plan: leave it out",
            ".name",
        )
    )
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    """Name of the variable. Ranks, rendezvous (PET_NNODES, PET_MASTER_ADDR, ...) and TRIMTAB_* are set by the plan."""
    value: LongString | None = None
    """Its value; `$(OTHER)` is expanded as in any pod."""


class ContainerResources(OpenModel):
    """Resources of a container besides its GPUs."""

    model_config = rules(_no_gpus("limits"), _no_gpus("requests"))
    limits: Annotated[dict[str, Quantity] | None, Field(max_length=32)] = None
    """Limits by resource name, e.g. of RDMA devices. GPUs are set by the plan."""
    requests: Annotated[dict[str, Quantity] | None, Field(max_length=32)] = None
    """Requests by resource name. CPU and memory that grow with the GPUs belong in `spec.resources`."""


class VolumeMount(OpenModel):
    """Where a volume appears in the container."""

    name: Text
    """Name of the volume."""
    mount_path: Text
    """Path inside the container. A memory-backed /dev/shm is added unless something is mounted there."""


class Container(OpenModel):
    """A container of the pod."""

    name: ContainerName
    """Name, unique in the pod."""
    image: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    """Image to run, best by digest."""
    command: Annotated[tuple[LongString, ...] | None, Field(max_length=256), extra(list_type="atomic")] = None
    """Entry point; the image's own when left out. How the launcher starts it: see `spec.launcher`."""
    args: Annotated[tuple[LongString, ...] | None, Field(max_length=512), extra(list_type="atomic")] = None
    """Arguments. The chosen launcher's flags for the parallel degrees are appended to those of the trainer."""
    env: Annotated[tuple[EnvVar, ...] | None, Field(max_length=256), extra(list_type="map", list_map_keys=["name"])] = (
        None
    )
    """Environment variables, e.g. NCCL_DEBUG. What the plan sets comes on top."""
    resources: ContainerResources | None = None
    """Resources besides GPUs. `spec.resources` sets CPU and memory of the trainer, per GPU."""
    volume_mounts: Annotated[
        tuple[VolumeMount, ...] | None, Field(max_length=64), extra(list_type="map", list_map_keys=["mountPath"])
    ] = None
    """Mounts of the pod's volumes."""


class NodeSelectorRequirement(ApiModel):
    """One comparison of a label (or field) of the node."""

    key: Annotated[str, StringConstraints(max_length=317)]
    """Label key, or `metadata.name` in matchFields."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How to compare."""
    values: Annotated[tuple[Label, ...] | None, Field(max_length=256), extra(list_type="atomic")] = None
    """Values for In and NotIn, one integer for Gt and Lt, none for the others."""


class NodeSelectorTerm(ApiModel):
    """Requirements that must all hold."""

    match_expressions: Annotated[
        tuple[NodeSelectorRequirement, ...] | None, Field(max_length=32), extra(list_type="atomic")
    ] = None
    """Comparisons of labels."""
    match_fields: Annotated[
        tuple[NodeSelectorRequirement, ...] | None, Field(max_length=32), extra(list_type="atomic")
    ] = None
    """Comparisons of fields; only `metadata.name` is known."""


class NodeSelector(ApiModel):
    """Terms of which one must hold."""

    node_selector_terms: Annotated[
        tuple[NodeSelectorTerm, ...], Field(min_length=1, max_length=32), extra(list_type="atomic")
    ]
    """The node must match at least one term."""


class NodeAffinity(OpenModel):
    """Nodes that the job may use."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """Nodes outside are never chosen. Preferences are not looked at: the plan weighs speed and topology itself."""


class Affinity(ApiModel):
    """Which nodes the pods may use."""

    model_config = rules(
        _refused("podAffinity", "the gang is placed as a whole, near each other; restrict nodes with nodeAffinity"),
        _refused(
            "podAntiAffinity", "the gang is placed as a whole, one pod per node; restrict nodes with nodeAffinity"
        ),
    )
    node_affinity: NodeAffinity | None = None
    """Required node affinity."""
    pod_affinity: AnyObject | None = None
    """Not supported."""
    pod_anti_affinity: AnyObject | None = None
    """Not supported."""


class Toleration(OpenModel):
    """A taint that the pods tolerate."""

    key: Annotated[str | None, StringConstraints(max_length=317)] = None
    """Key of the taint; all keys when left out (with operator Exists)."""
    operator: Literal["Exists", "Equal"] | None = None
    """Equal when left out."""
    value: Label | None = None
    """Value that the taint must have (with operator Equal)."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect to tolerate; all when left out."""


class Volume(OpenModel):
    """A volume of the pod; its source is kept as it is."""

    name: ContainerName
    """Name, unique in the pod."""


class PodSpec(OpenModel):
    """What each pod of the gang runs. There is one pod per node; all have equally many GPUs."""

    model_config = rules(
        rule(
            "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
            "restartPolicy must be Never: a gang restarts as a whole, see spec.maxRestarts",
            ".restartPolicy",
        ),
        _refused("nodeName", "the plan chooses the nodes; restrict them with nodeSelector or affinity"),
        _refused("schedulerName", "the gang is bound by Trimtab"),
        _refused("hostname", "pods are named by their rank in the plan"),
        _refused("subdomain", "the gang's headless Service is named by the plan"),
        _refused("priorityClassName", "use spec.priorityClassName, which decides about the whole gang"),
        _refused("schedulingGates", "the gang waits in spec.suspend or until it is planned, never behind gates"),
        _refused(
            "topologySpreadConstraints", "the plan places the gang by topology; limit it with spec.resources.maxNodes"
        ),
    )
    containers: Annotated[
        tuple[Container, ...], Field(min_length=1, max_length=8), extra(list_type="map", list_map_keys=["name"])
    ]
    """The trainer gets the GPUs, the ranks and the launcher's flags: the container named `trainer`, or else the first.
    The others are sidecars."""
    init_containers: Annotated[
        tuple[Container, ...] | None, Field(max_length=8), extra(list_type="map", list_map_keys=["name"])
    ] = None
    """Containers that run before the trainer, e.g. to fetch a data set."""
    node_selector: Annotated[dict[str, Label] | None, Field(max_length=32)] = None
    """Labels that a node must have to be considered."""
    affinity: Affinity | None = None
    """Required node affinity that a node must meet to be considered."""
    tolerations: Annotated[tuple[Toleration, ...] | None, Field(max_length=32), extra(list_type="atomic")] = None
    """Taints of nodes that may be used nevertheless. Taints named like the GPU resource are tolerated anyway."""
    volumes: Annotated[
        tuple[Volume, ...] | None, Field(max_length=64), extra(list_type="map", list_map_keys=["name"])
    ] = None
    """Volumes, e.g. for data and checkpoints."""
    termination_grace_period_seconds: Annotated[Int64, Field(ge=0, le=86400)] | None = None
    """Seconds from SIGTERM to SIGKILL; torchrun itself gives its workers 30 of them. 30 when left out."""
    restart_policy: Text | None = None
    """Never, which is also what is used when left out."""
    node_name: Text | None = None
    """Not allowed: set by the plan."""
    scheduler_name: Text | None = None
    """Not allowed: set by the plan."""
    hostname: Text | None = None
    """Not allowed: set by the plan."""
    subdomain: Text | None = None
    """Not allowed: set by the plan."""
    priority_class_name: Text | None = None
    """Not allowed: use `spec.priorityClassName`."""
    scheduling_gates: Annotated[tuple[AnyObject, ...] | None, Field(max_length=16), extra(list_type="atomic")] = None
    """Not allowed."""
    topology_spread_constraints: Annotated[
        tuple[AnyObject, ...] | None, Field(max_length=16), extra(list_type="atomic")
    ] = None
    """Not allowed: placement by topology is the plan's."""


class PodMetadata(ApiModel):
    """Labels and annotations of the pods."""

    model_config = rules(
        *(
            rule(
                f"!has(self.{table}) || !self.{table}.exists(k, k.startsWith('{GROUP}/'))",
                f"{table} that begin with {GROUP}/ are set by the plan",
                f".{table}",
            )
            for table in ("labels", "annotations")
        )
    )
    labels: Annotated[dict[str, Label] | None, Field(max_length=64)] = None
    """Labels that every pod gets besides Trimtab's own."""
    annotations: Annotated[dict[str, LongString] | None, Field(max_length=64)] = None
    """Annotations that every pod gets besides Trimtab's own."""


class PodTemplate(ApiModel):
    """The pod that every node of the gang runs."""

    metadata: PodMetadata | None = None
    """Labels and annotations of the pods."""
    spec: PodSpec
    """The pod. GPUs, ranks, environment, scheduler and node are filled in by the plan."""


def trainer_of(containers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the container (as JSON) that gets the GPUs, ranks and flags: the one named `trainer`, or the first."""
    return containers[trainer_among([container["name"] for container in containers])]


def trainer_among(container_names: Sequence[str]) -> int:
    """Index of the trainer among the containers of these names: the one named `trainer`, or the first."""
    return container_names.index(TRAINER_CONTAINER) if TRAINER_CONTAINER in container_names else 0
