"""What keeps jobs that wait from being planned, found beside the rounds: `references` and `templates`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from trimtab.kube.client import KubeClient
from trimtab.kube.objects import JobObject
from trimtab.observe.jobs import JobFacts
from trimtab_policy.types import Pending


class Screening(ABC):
    """Looks at all jobs in every round, and asks the API server about some of them in between."""

    def __init__(
        self,
        client: KubeClient,
        jobs: Callable[[], Iterable[JobObject]],
        facts: Callable[[JobObject], JobFacts],
        wake: Callable[[], None],
    ) -> None:
        """`jobs` are all that there are, `facts` what each is understood as; `wake` starts a round."""
        self._client = client
        self._jobs = jobs
        self._facts = facts
        self._wake = wake

    @abstractmethod
    def look(self) -> dict[str, Pending | None]:
        """Who must not be planned, by UID: why, or None where it is being asked. To be called once in every round."""

    @abstractmethod
    async def run(self) -> None:
        """Ask and ask again, until cancelled. Raises LeadershipLost."""
