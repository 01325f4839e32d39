"""What a job went through: when it was asked to stop, and what ended its gangs. Short lists in its status, oldest
first.

They are memory that outlives plans and controllers: nobody has to give way too often, and a node that ends the gangs of
several jobs is found by reading their statuses.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from trimtab.api.base import ApiModel, Int64, Text, Time
from trimtab_policy.types import StopCause


class StopRecord(ApiModel):
    """A gang that was stopped on request."""

    time: Time
    """When it was asked."""
    epoch: Annotated[Int64, Field(ge=1)]
    """Its plan."""
    cause: StopCause
    """Why."""
    beneficiary: Text | None = None
    """Job (namespace/name) that got its GPUs, if any."""
    save_seconds: Annotated[Int64, Field(ge=0)] | None = None
    """From the request until the gang had saved its state; absent where it did not say so."""
    start_seconds: Annotated[Int64, Field(ge=0)] | None = None
    """From its next plan until the training went on: until its pods ran, where it reports no steps. Absent where that
    plan had to wait for others."""


class FailureCause(StrEnum):
    """What ended a gang: a closed list that tools may rely on. It decides who pays for the next attempt."""

    USER_ERROR = "UserError"
    """The program, image or spec is wrong: trying again does not help."""
    PROGRAM = "Program"
    """The training ended with an error that may pass: counts against `spec.maxRestarts`."""
    OUT_OF_MEMORY = "OutOfMemory"
    """A container needed more host memory than its limit."""
    NODE = "Node"
    """A node is gone, NotReady, or has refused or evicted the pod."""
    GPU = "Gpu"
    """A GPU is broken."""
    OTHER = "Other"
    """Anything else outside the training: pods deleted, quotas, time-outs."""


class FailureRecord(ApiModel):
    """A gang that came to an unwanted end."""

    time: Time
    """When."""
    epoch: Annotated[Int64, Field(ge=1)]
    """Its plan."""
    generation: Annotated[Int64, Field(ge=0)] | None = None
    """metadata.generation of the spec that the plan was made for: what a user has mended since is judged anew."""
    cause: FailureCause
    """Who is to blame."""
    reason: Text
    """One word for machines, as of the event."""
    node: Text | None = None
    """Node where it began; absent where no node is to blame."""
    running: bool = False
    """Whether the gang ran as a whole before."""
