"""A plan in a job's status -> everything that its objects are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.api.convert import to_model_spec, to_placement
from trimtab.api.status import Plan, PlanTerms
from trimtab.api.v1alpha1 import JobSpec
from trimtab.kube.objects import Meta
from trimtab.kube.quantity import to_int, to_milli
from trimtab.plan.objects import GangPlan
from trimtab_policy.specs import TrainingSpec


def gang_plan(
    meta: Meta,
    spec: JobSpec,
    template: Mapping[str, Any],
    training: TrainingSpec,
    plan: Plan,
    annotations: dict[str, dict[str, str]] | None = None,
    report_url: str = "",
    report_ca: str = "",
    scheduler: str = "",
    *,
    grouped: bool = False,
    domained: bool = False,
    resume_step: int = 0,
) -> GangPlan:
    """Everything that the objects of a planned job are made of."""
    placement, terms = to_placement(meta.uid, plan), plan.terms or _terms_of(spec)
    return GangPlan(
        namespace=meta.namespace,
        job=meta.name,
        uid=meta.uid,
        epoch=plan.epoch,
        gpu_type=plan.gpu_type,
        gpu_resource=plan.gpu_resource,
        shares=placement.shares,
        plan=placement.plan,
        training=training,
        layers=to_model_spec(spec.model).layers,
        launcher=spec.launcher.value,
        template=dict(template),
        queue=terms.queue,
        priority_class=terms.priority_class,
        cpus_per_gpu_milli=terms.cpu_millis_per_gpu,
        memory_per_gpu=terms.memory_bytes_per_gpu,
        annotations=annotations or {},
        report_url=report_url,
        report_ca=report_ca,
        scheduler=scheduler,
        grouped=grouped,
        domained=domained,
        resume_step=resume_step,
    )


def _terms_of(spec: JobSpec) -> PlanTerms:
    """Where the plan does not say, being of an earlier version."""
    resources = spec.resources
    return PlanTerms(
        queue=spec.queue or "",
        priority_class=spec.priority_class_name or "",
        cpu_millis_per_gpu=to_milli(resources.cpus_per_gpu) if resources.cpus_per_gpu is not None else 0,
        memory_bytes_per_gpu=to_int(resources.memory_per_gpu) if resources.memory_per_gpu is not None else 0,
    )
