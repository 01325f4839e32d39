"""One job's facts: its spec understood, its status read, and where it stands in its life."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct
from pydantic import ValidationError

from trimtab import names
from trimtab.api import conditions
from trimtab.api.convert import to_model_spec, to_requirements, to_training
from trimtab.api.status import JobStatus, PlanTerms
from trimtab.api.template import PodTemplate, trainer_among
from trimtab.api.v1alpha1 import JobSpec
from trimtab.errors import QuantityError, SpecError
from trimtab.kube.objects import Container, JobObject, Meta, PodObject
from trimtab.observe import pods
from trimtab.telemetry import isolation
from trimtab_policy.specs import ModelSpec, TrainingSpec
from trimtab_policy.types import Job, Requirements

NO_TEMPLATE = PodTemplate.model_validate({"spec": {"containers": [{"name": "trainer", "image": "none"}]}})
"""In the place of the real one, which `JobFacts.template` has: it is the larger part of a job by far."""


class JobFacts(Struct, frozen=True, dict=True):
    """A job with everything derived from its own object. What every round asks for is worked out once (`dict`)."""

    meta: Meta
    status: JobStatus
    created: float
    error: str = ""
    """Why the spec cannot be understood (a job written for a newer or older CRD); then the fields below are None."""
    unreadable: bool = False
    """The status itself cannot be read: it must not be overwritten."""
    spec: JobSpec | None = None
    source: msgspec.Raw = msgspec.Raw(b'{"template":{"spec":{"containers":[]}}}')
    """The spec as the API server sent it."""
    equipped: Mapping[str, Any] | None = None
    """The template with what the quota of Kueue adds to it; None where nothing does."""
    model: ModelSpec | None = None
    training: TrainingSpec | None = None
    requirements: Requirements | None = None

    @property
    def template(self) -> Mapping[str, Any]:
        """`spec.template` exactly as the user wrote it, or as Kueue has equipped it.

        Made anew each time: as objects it takes several times what it takes as text, of thousands of jobs that may
        never be asked for it.
        """
        if self.equipped is not None:
            return self.equipped
        found: Mapping[str, Any] = msgspec.json.decode(self.source)["template"]
        return found

    @cached_property
    def finished(self) -> bool:
        """Whether the job has completed, or failed for good."""
        return conditions.holds(self.status.conditions, names.COMPLETE) or conditions.holds(
            self.status.conditions, names.FAILED
        )

    @property
    def suspended(self) -> bool:
        return bool(self.spec and self.spec.suspend)

    @property
    def ours(self) -> bool:
        """Whether this controller is in charge of the job."""
        return self.spec is None or self.spec.managed_by in (None, names.MANAGED_BY, names.MANAGED_BY_STAND_IN)

    @property
    def stands_in(self) -> bool:
        """Whether it stands in for a job of another kind, whose own controller makes the pods."""
        return self.spec is not None and self.spec.managed_by == names.MANAGED_BY_STAND_IN

    @cached_property
    def holds_gpus(self) -> bool:
        """Whether a plan stands and its gang has not ended."""
        return self.status.plan is not None and not self.finished

    @property
    def waits(self) -> bool:
        """Whether it is ours, wants GPUs and has none."""
        idle = self.finished or self.suspended or self.holds_gpus or self.meta.deletion_timestamp
        return self.ours and self.spec is not None and not idle

    @property
    def terms(self) -> PlanTerms | None:
        """What holds for the gang that it has, whatever the spec says by now; None where it has none."""
        return self.status.plan.terms if self.status.plan else None

    @cached_property
    def plan_nodes(self) -> tuple[str, ...]:
        """Nodes that its plan names; none without a plan."""
        return tuple(node.name for node in self.status.plan.nodes) if self.status.plan else ()

    @cached_property
    def gang_nodes(self) -> tuple[str, ...] | None:
        """Nodes of its gang; None where it has none that holds GPUs."""
        return self.plan_nodes if self.holds_gpus else None

    @cached_property
    def asks(self) -> Requirements | None:
        """The requirements, with what the pods of the standing plan ask for where the spec says otherwise by now."""
        need, terms = self.requirements, self.terms
        if need is None or terms is None:
            return need
        cpu, memory = terms.cpu_millis_per_gpu, terms.memory_bytes_per_gpu
        if (cpu, memory) == (need.cpu_milli_per_gpu, need.memory_per_gpu):
            return need
        return msgspec.structs.replace(need, cpu_milli_per_gpu=cpu, memory_per_gpu=memory)

    def as_job(self, *, queue: str | None = None, requirements: Requirements | None = None, **known: Any) -> Job:
        """The job as policies see it; `known` are the fields that its own object does not tell.

        `queue` is the one that it counts against unless its plan says another; None: the one that it names.
        `requirements` are what is left of the spec's; None: all of it.

        Raises SpecError when the spec cannot be understood.
        """
        if self.spec is None or self.model is None or self.training is None or self.requirements is None:
            raise SpecError("spec", self.error)
        if self.terms is not None:
            queue = self.terms.queue
        return Job(
            uid=self.meta.uid,
            namespace=self.meta.namespace,
            name=self.meta.name,
            model=self.model,
            training=self.training,
            requirements=requirements or self.requirements,
            queue=(self.spec.queue or "") if queue is None else queue,
            policy=self.meta.annotations.get(names.ANNOTATION_POLICY),
            **known,
        )

    def steps_done(self) -> int:
        """Optimizer steps that need not be done again, as far as the training reports them."""
        observed = self.status.observed
        return min(observed.steps_done, self.training.steps) if observed and self.training else 0

    def steps_beyond(self) -> int:
        """Steps that the training reports beyond all that it states; reports of more than twice those are refused."""
        observed = self.status.observed
        return max(0, observed.steps_done - self.training.steps) if observed and self.training else 0

    @property
    def reports_steps(self) -> bool:
        """Whether the gang of the standing plan has said how long its steps take, and thus when it will end."""
        plan, observed, told = self.status.plan, self.status.observed, self.status.trainer_status
        measured = plan and observed and observed.epoch == plan.epoch and observed.step_milliseconds is not None
        return bool(measured and told and told.estimated_remaining_seconds is not None)

    def expected_finish(self) -> float | None:
        """When its gang will have ended, as a POSIX time: by the steps that it reports, else as predicted.

        What a training says is its own word: `observe.ends` holds it to that.
        """
        plan, told = self.status.plan, self.status.trainer_status
        if plan is None:
            return None
        if self.reports_steps and told and told.estimated_remaining_seconds is not None:
            return told.last_updated_time.timestamp() + told.estimated_remaining_seconds
        return plan.predicted.finish_time.timestamp()

    def retry_at(self) -> float:
        """When the next plan may be made, as a POSIX time; 0 when at once."""
        return self.status.retry_time.timestamp() if self.status.retry_time else 0.0

    @cached_property
    def waits_since(self) -> float | None:
        """When it began to wait again after it had run, or was suspended, as a POSIX time; None where it never did."""
        found = [conditions.find(self.status.conditions, names.SUSPENDED)]
        if self.status.last_epoch:
            found.append(conditions.find(self.status.conditions, names.PLANNED))
        return max(
            (each.last_transition_time.timestamp() for each in found if each and each.status != "True"), default=None
        )


def speedup_of(jobs: Iterable[JobFacts]) -> float:
    """How many times as fast as predicted pods run here, by what the latest plan counts on; 1 where they are real."""
    plans = [job.status.plan for job in jobs if job.status.plan]
    latest = max(plans, key=lambda plan: plan.created_time, default=None)
    return (latest.predicted.speedup_permille or 1000) / 1000 if latest else 1.0


def facts(job: JobObject, before: JobFacts | None = None) -> JobFacts:
    """Understand a job object; what cannot be understood is said in `error`.

    `before` is what an earlier version of it was understood as. Most versions differ in the status only, and the spec
    is the larger part by far: it is not read again as long as it is the same, byte for byte.
    """
    created = posix(job.metadata.creation_timestamp)
    try:
        status = JobStatus.model_validate_json(bytes(job.status))
    except ValidationError as error:
        said = f"status cannot be read: {_words(error, 'status')}"
        return JobFacts(job.metadata, JobStatus(), created, said, unreadable=True)
    if before and before.spec and not before.error and bytes(before.source) == bytes(job.spec):
        # The source is the object's own: else two copies were held.
        return msgspec.structs.replace(before, meta=job.metadata, status=status, created=created, source=job.spec)
    try:
        spec = JobSpec.model_validate_json(bytes(job.spec))
        template = msgspec.json.decode(job.spec)["template"]
        return JobFacts(
            meta=job.metadata,
            status=status,
            created=created,
            spec=spec.model_copy(update={"template": NO_TEMPLATE}),
            source=job.spec,
            model=to_model_spec(spec.model),
            training=to_training(spec.training),
            requirements=_with_template(to_requirements(spec), template["spec"]),
        )
    except ValidationError as error:
        return JobFacts(job.metadata, status, created, _words(error, "spec"))
    except msgspec.ValidationError as error:
        return JobFacts(job.metadata, status, created, f"spec.template.spec: {error}")
    except (SpecError, QuantityError) as error:
        return JobFacts(job.metadata, status, created, str(error))
    except Exception as error:  # noqa: BLE001 - a spec that nobody thought of must not hide the plan of its job
        isolation.told("spec", error, job.metadata.key)
        return JobFacts(job.metadata, status, created, f"spec: cannot be understood ({type(error).__name__})")


def broken(job: JobObject, error: Exception) -> JobFacts:
    """A job that could not even be found to be wrong: nothing is done with it, and nothing overwritten."""
    said = f"cannot be understood ({type(error).__name__}): this is a bug of Trimtab, please report it"
    return JobFacts(job.metadata, JobStatus(), 0.0, said, unreadable=True)


def _with_template(requirements: Requirements, pod_spec: Mapping[str, Any]) -> Requirements:
    """Add what a pod requests besides its amounts per GPU, which replace those of the trainer.

    A pod that needs more before its trainer starts (init containers) than with one GPU needs that much at least.
    """
    per_gpu = {"cpu": requirements.cpu_milli_per_gpu, "memory": requirements.memory_per_gpu}
    given = {resource for resource, amount in per_gpu.items() if amount}
    pod = _without_trainer(pods.from_template(pod_spec), given)
    cpu, memory = (_beside(pod, resource, amount) for resource, amount in per_gpu.items())
    return msgspec.structs.replace(requirements, cpu_milli_per_pod=cpu, memory_per_pod=memory)


def _without_trainer(pod: PodObject, resources: Collection[str]) -> PodObject:
    """The pod with the trainer asking for none of these resources."""
    containers = list(pod.spec.containers)
    at = trainer_among([container.name for container in containers])
    asked = containers[at].resources
    requests, limits = (
        {resource: amount for resource, amount in table.items() if resource not in resources}
        for table in (asked.requests, asked.limits)
    )
    kept = msgspec.structs.replace(asked, requests=requests, limits=limits)
    containers[at] = msgspec.structs.replace(containers[at], resources=kept)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=tuple(containers)))


def _beside(pod: PodObject, resource: str, per_gpu: int) -> int:
    running = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, init_containers=_sidecars(pod)))
    return max(pods.request(running, resource), pods.request(pod, resource) - per_gpu)


def _sidecars(pod: PodObject) -> tuple[Container, ...]:
    return tuple(container for container in pod.spec.init_containers if container.restart_policy == "Always")


def posix(timestamp: str | None) -> float:
    """RFC 3339 -> POSIX seconds; 0 for none."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def _words(error: ValidationError, part: str) -> str:
    """`spec.training.steps: Input should be ...`, one for each wrong field of that part of a job."""
    return "; ".join(f"{'.'.join(map(str, (part, *item['loc'])))}: {item['msg']}" for item in error.errors()[:3])
