"""Sections about a cluster in use: queues, who gives way to whom, resizing, failures, idle jobs. Durations are
seconds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.settings.section import Seconds, Section


class QueueSettings(Section):
    """Whose turn it is."""

    reservations: Annotated[int, Field(ge=0)] = 1
    """Waiting jobs, first in line, that GPUs are kept for as those become free: others start before them only where
    that does not delay them. 0: whoever fits starts, and large gangs may starve."""
    starvation_seconds: Seconds = 6 * 3600.0
    """A job that has waited for so long gets such a reservation, too, whoever is before it in line. One that
    `rudder` may move later gets it once it has waited for as long as it takes alone on the best GPUs, too, if that is
    more (two days at most); from then on `rudder` stops others for it where it may."""
    status_seconds: Seconds = 10.0
    """The status of queues is written at most so often."""
    considered_per_queue: Annotated[int, Field(ge=1)] = 500
    """Waiting jobs of one queue, or of one namespace without a queue, that a decision considers: the first in line."""
    considered: Annotated[int, Field(ge=1)] = 1000
    """Waiting jobs that a decision considers in all; queues take turns. Fewer while decisions are late."""


class PreemptionSettings(Section):
    """Who gives way to whom."""

    enabled: bool = True
    """Stop jobs of lower priority for one of higher priority that fits nowhere else."""
    reclaim: bool = True
    """Stop jobs of queues that hold more than they are guaranteed, for one whose queue holds less."""
    consolidation: bool = True
    """Move jobs, or divide them otherwise, where the free GPUs lie too scattered for a gang."""
    per_job_per_hour: Annotated[int, Field(ge=0)] = 2
    """A job is stopped or moved for others at most so often in an hour."""
    most_grace_seconds: Seconds = 900.0
    """Who is stopped for others, or by Kueue, has no more time to save its state, whatever its `graceSeconds`."""
    most_runtime_seconds: Annotated[float, Field(ge=0)] = 3600.0
    """A gang is spared for no longer than this after it was planned, whatever the job's `minRuntimeSeconds`."""
    at_once: Annotated[int, Field(ge=1)] = 16
    """While so many gangs are being stopped for others, nobody else has room made. For one gang, all stop that it
    takes."""


class ElasticitySettings(Section):
    """Running jobs with `elasticity.policy: Elastic` get more, fewer or other GPUs."""

    enabled: bool = True
    """Whether they do."""
    gain: Annotated[float, Field(ge=1)] = 1.5
    """The time that a job saves must be so many times what the change costs: save, schedule, load, lost work."""
    interval_seconds: Seconds = 60.0
    """Resizes are considered so often."""


class FailureSettings(Section):
    """What is done about failures."""

    start_timeout_seconds: Seconds = 1800.0
    """A gang whose pods are all bound must run as a whole after so long: images are pulled, volumes mounted."""
    user_error_attempts: Annotated[int, Field(ge=1)] = 2
    """A job whose gang ends so often in a row with what only its user can mend has Failed, whatever `maxRestarts`."""
    bad_node_gangs: Annotated[int, Field(ge=1)] = 2
    """A node that has ended so many gangs ..."""
    bad_node_seconds: Seconds = 6 * 3600.0
    """... within so long is avoided and reported, until the last one was so long ago."""
    silent_nodes: Literal["Wait", "Incomplete", "Always"] = "Incomplete"
    """What happens to pods that are to end, on a node that does not answer. Two gangs of a job never run at once, so
    the job waits for them. Incomplete: where another pod of their gang has ended, none of it can compute any more, and
    they are deleted by force. Always: gangs that may still compute, too, where others make sure of the machine."""
    silent_node_seconds: Seconds = 300.0
    """They are, so long after Kubernetes has called the node Unknown."""
    brake: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Where so large a part of the GPU nodes is lost at once, no gang is taken down because of it: more likely the
    network or the control plane has failed than the nodes."""
    brake_nodes: Annotated[int, Field(ge=1)] = 4
    """Lost nodes below which the brake never holds: half of a cluster of two is one broken node."""
    spares: Literal["Never", "Auto"] = "Never"
    """Auto: keep nodes of each GPU type free for gangs that have lost one, as many as the figures below ask for."""
    failures_per_node_day: Annotated[float, Field(gt=0)] = 0.004
    """Failures of one node in a day. That of Llama 3's training: 419 in 54 days on 2,048 nodes."""
    repair_seconds: Seconds = 24 * 3600.0
    """Until a failed node is back."""
    spare_risk: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Probability, at most, with which more nodes are out at a time than there are spares."""


class IdleSettings(Section):
    """Jobs that hold GPUs and do nothing with them, as far as the agents of all their nodes say so."""

    utilization: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """A GPU on which kernels run for less than this part of the time is idle."""
    after_seconds: Seconds = 1800.0
    """A job gets the condition Idle whose GPUs have all been idle for so long, and that reported no step meanwhile.
    Never while an agent of its nodes is silent."""
    stop: Literal["Never", "AfterNotice"] = "Never"
    """AfterNotice: it is asked to save its state then, and stopped, once the notice is over; it waits in line again."""
    notice_seconds: Seconds = 1800.0
    """From the condition, which says until when, to that request."""


class InteropSettings(Section):
    """Other systems that have a say."""

    kueue: Literal["Auto", "Never"] = "Auto"
    """Auto: jobs with the label `kueue.x-k8s.io/queue-name` wait until Kueue admits them, where it is installed."""
    other_kinds: Literal["Never", "Advise"] = "Never"
    """Advise: annotations and an event on training jobs of other kinds (JobSet, TrainJob, ...) that have the label
    `trimtab.dev/advise: "true"` say what Trimtab would decide; nothing else of them is changed."""
    advise_seconds: Seconds = 60.0
    """So often an advice that stands is looked at anew."""
    place: Literal["Never", "Labelled"] = "Never"
    """Labelled: where and when the pods of batch Jobs, JobSets, PyTorchJobs, MPIJobs, RayJobs, TrainJobs and PodGroups
    run that have the label `trimtab.dev/managed: "true"` is decided as for jobs of our own; their own controllers make
    the pods."""
