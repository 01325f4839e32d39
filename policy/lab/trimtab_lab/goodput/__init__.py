"""Jobs with measured speed and statistical efficiency, as in the Sia artifact: `jobs` makes them of a trace.

Way through the files: `batching` (which batch, and how it is divided), `site` (the truth about an application on a
cluster), `knowledge` (what a job may know of it), `online` and `oracle` (how it estimates), `job` (the job itself).
What it runs on are the tables of `sim.profiles` and the model of `sim.throughput_fit`.
"""

from __future__ import annotations

from enum import StrEnum

from trimtab_lab.goodput.job import GoodputJob
from trimtab_lab.goodput.knowledge import Estimator, Experience, Knowledge, Regime
from trimtab_lab.goodput.online import OnlineFit, UnawareFit
from trimtab_lab.goodput.oracle import TOO_SMALL, FixedRequest, Oracle
from trimtab_lab.goodput.profiles import ProfileError, Profiles
from trimtab_lab.goodput.site import Site, pools
from trimtab_lab.workloads.trace import Submission, Trace
from trimtab_policy.types import Snapshot

__all__ = ["TOO_SMALL", "BadJob", "Form", "GoodputJob", "Knowledge", "Regime", "jobs"]


class Form(StrEnum):
    """What may be changed about the jobs of a workload: each kind of scheduler gets its own form."""

    ADAPTIVE = "Adaptive"
    """Sia: GPU type, count and batch. The trace's GPUs are ignored, its batch caps what policies see (`Knowledge`)."""
    TUNED = "Tuned"
    """Gavel and rigid schedulers: GPU type only, with the trace's GPUs and batch and the true speed. What the jobs know
    of their goodput plays no part."""
    UNAWARE = "Unaware"
    """Pollux: GPU count and batch, without telling GPU types apart (`online.UnawareFit`); FIT or POOLED."""


UNAWARE_RESTART_SECONDS = 30.0
"""What Pollux believes a restart to cost, of any job."""


class BadJob(ValueError):
    """A job of a trace that cannot be simulated with these profiles."""


def jobs(
    trace: Trace,
    profiles: Profiles,
    form: Form = Form.ADAPTIVE,
    knowledge: Knowledge | None = None,
    *,
    cluster: Snapshot,
) -> list[GoodputJob]:
    """The jobs of a Sia workload on a cluster.

    GPU types of the cluster that were not profiled are not used; run times and allowed GPU types of the trace do not
    count. Raises BadJob, naming it, for one whose application or batch was not profiled, or whose request fits nowhere;
    ProfileError when no GPU type of the cluster was profiled, FileError for damaged profiles.
    """
    builder = _Builder(profiles, form, knowledge or Knowledge(), cluster)
    return [builder.job(row, each) for row, each in enumerate(trace)]


class _Builder:
    """What jobs of a workload share."""

    def __init__(self, profiles: Profiles, form: Form, knowledge: Knowledge, cluster: Snapshot) -> None:
        if form is Form.UNAWARE and knowledge.regime not in (Regime.FIT, Regime.POOLED):
            raise ValueError(f"form {form} knows regimes {Regime.FIT} and {Regime.POOLED}, not {knowledge.regime}")
        self._profiles, self._form, self._knowledge = profiles, form, knowledge
        self._pools = pools(cluster)
        self._sites: dict[str, Site] = {}
        self._pooled: dict[str, Experience] = {}

    def job(self, row: int, each: Submission) -> GoodputJob:
        """Raises BadJob."""
        if each.category not in ("", "adaptive"):
            raise BadJob(f"{each.name}: category {each.category!r} is not simulated, only 'adaptive' is")
        try:
            site = self._site(each.application)
            estimator = self._estimator(row, each, site)
        except ProfileError as error:
            raise BadJob(f"{each.name}: {error}") from error
        facts = site.application.facts
        assumed = UNAWARE_RESTART_SECONDS if self._form is Form.UNAWARE else facts.assumed_restart_seconds
        if self._form is Form.TUNED:
            return GoodputJob(each, site, estimator, facts.restart_seconds, each.batch_size)
        return GoodputJob(each, site, estimator, assumed, None)

    def _site(self, application: str) -> Site:
        if application not in self._sites:
            self._sites[application] = Site(self._profiles.application(application), self._pools)
        return self._sites[application]

    def _estimator(self, row: int, each: Submission, site: Site) -> Estimator:
        knowledge, app = self._knowledge, site.application
        if not app.init_batch <= each.batch_size <= app.max_batch:
            raise ProfileError(f"batch_size {each.batch_size}, where {app.init_batch} to {app.max_batch} were profiled")
        if self._form is Form.TUNED:
            return FixedRequest(site, each.gpus, each.batch_size)
        if knowledge.regime in (Regime.MODEL, Regime.EXACT):
            return Oracle(site, knowledge.sigma, (knowledge.seed, row))
        pooled = knowledge.regime is Regime.POOLED
        experience = self._pooled.setdefault(each.application, Experience()) if pooled else Experience()
        if self._form is Form.UNAWARE:
            return UnawareFit(site, experience)
        cap = each.batch_size if knowledge.capped else app.max_batch
        return OnlineFit(site, experience, cap, project=knowledge.project)
