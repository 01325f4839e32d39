"""The jobs of `trimtab/Cluster-v0` as jobs of the live API: what agents are trained on, for every policy to schedule.

The environment counts work in GPU-seconds of a family's most efficient option and reads speeds from a table; the live
system counts steps and searches plans. Both ask the same performance model, so a job that is described here takes as
long on a gang as it takes there, but for the last step: steps are whole.
"""

from __future__ import annotations

import numpy as np

from trimtab_lab.environments.cluster_jobs import (
    ClusterEpisode,
    JobFamily,
    Mix,
    draw,
    llm,
    machines,
    most_efficient,
    plans,
    saturation,
)
from trimtab_policy import catalog
from trimtab_policy.types import Bounds, Job, Requirements, Snapshot

LARGEST_GANG = 16
DEADLINE_SHARE = 0.2
"""As the environment has them by default."""


def jobs(count: int, cluster: Snapshot, load: float, seed: int) -> list[Job]:
    """The jobs of the episode that `ClusterEnv(cluster=..., jobs=count, load=load)` begins when it is reset by `seed`.

    In the order of `created`, from 0 s on; any GPU type, 1 to 16 GPUs. `load` is relative to what the cluster could
    carry at best (`cluster_jobs.saturation`). Raises ValueError where no family fits the cluster.
    """
    if count < 1 or not 0 < load < np.inf:
        raise ValueError(f"jobs and load must be above 0, got {count} jobs at load {load}")
    gangs = machines(cluster, LARGEST_GANG)
    families, known = llm(cluster, gangs), plans(cluster, gangs)
    mix = Mix(count, load * saturation(gangs, families), 0.0, DEADLINE_SHARE)
    episode = draw(families, mix, np.random.default_rng(seed))
    kinds, per_second = list(known), np.array([most_efficient(gangs, each.rate) for each in known.values()])
    steps = np.maximum(1, np.rint(episode.work * per_second[episode.family]))
    return [_job(number, kinds[episode.family[number]], int(steps[number]), episode) for number in range(count)]


def _job(number: int, kind: JobFamily, steps: int, episode: ClusterEpisode) -> Job:
    """With a name that Kubernetes accepts."""
    name = f"{kind.model.replace('.', '-')}-{number}"
    deadline = float(episode.deadline[number])
    return Job(
        uid=name,
        namespace="default",
        name=name,
        model=catalog.model(kind.model),
        training=kind.training(steps),
        requirements=Requirements(Bounds(1, LARGEST_GANG)),
        created=float(episode.submitted[number]),
        deadline=deadline if deadline < np.inf else None,
    )
