"""What each address of the API answers: the values of the commands, for what an audience may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trimtab.commands.explanation import explain_alone, explain_live
from trimtab.commands.get import job_values, node_values
from trimtab.commands.reach import EVERYWHERE, Reach
from trimtab.doctor import show
from trimtab.doctor.collect import gather
from trimtab.doctor.examine import examine
from trimtab.errors import TrimtabError, UsageError
from trimtab.observe.snapshot import Observation
from trimtab.settings import Settings
from trimtab.ui import line, queues, usage
from trimtab.web import views
from trimtab.web.audience import Audience, columns_for, redacted
from trimtab.web.console import Moment
from trimtab_policy.catalog import UnknownGpu
from trimtab_policy.listing import listed
from trimtab_policy.perf.hierarchy import Learned
from trimtab_policy.policy import UnknownPolicy

BACK_SECONDS, AHEAD_SECONDS, LONGEST_SECONDS = 6 * 3600.0, 24 * 3600.0, 31 * 86400.0
LONGEST_WHY = 64
"""Characters of `why-not`."""


class NotAllowed(TrimtabError):
    """A visitor may not ask this; `needs` says which right is missing."""

    def __init__(self, what: str, needs: str) -> None:
        super().__init__(what)
        self.needs = needs


class NotThere(TrimtabError):
    """There is no such thing, or none that this visitor may see."""


class Query(Struct, frozen=True):
    """What is asked about: the part of an address behind its name, and its parameters."""

    rest: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        """A parameter; empty where it is not given."""
        return dict(self.words).get(name, "")


Answer = Callable[[Moment, Audience, Query, Settings], Any]


def nodes(moment: Moment, audience: Audience, query: Query, settings: Settings) -> Any:
    """Columns, or objects."""
    if not audience.nodes:
        raise NotAllowed("you may not see nodes", "list and watch of nodes and gpunodes.trimtab.dev")
    if query.get("form") == "objects":
        return {"items": node_values(moment.seen, moment.seen.nodes.keys())}
    columns = columns_for(audience, moment.columns, moment.denied(audience))
    return {"time": moment.seen.snapshot.time, "columns": columns}


def jobs(moment: Moment, audience: Audience, query: Query, settings: Settings) -> Any:
    """As `trimtab get jobs -A -o json`."""
    shown = [facts for facts in moment.seen.jobs.values() if audience.sees(facts.meta.namespace)]
    shown.sort(key=lambda facts: (facts.meta.namespace, facts.created, facts.meta.name))
    return {"items": job_values(shown)}


def job(moment: Moment, audience: Audience, query: Query, settings: Settings) -> Any:
    """As `trimtab explain -o json`, and the rows that it prints."""
    namespace, name = query.rest
    if not audience.sees(namespace):
        raise NotAllowed("you may not see jobs of this namespace", f"list and watch of {JOBS_KIND} there")
    if not any((each.meta.namespace, each.meta.name) == (namespace, name) for each in moment.seen.jobs.values()):
        raise NotThere("there is no such job: it may have been deleted")
    policy = moment.deciders.policy or settings.policy.name
    return explained(moment.seen, namespace, name, moment.known, settings, policy, query.get("why-not"), moment.reach)


def explained(
    seen: Observation, namespace: str, name: str, known: Learned, settings: Settings, policy: str, why: str,
    reach: Reach = EVERYWHERE,
) -> dict[str, Any]:  # fmt: skip
    """As `trimtab explain -o json`, and the rows that it prints; of what is seen, only what the job's status says where
    that is not all. Raises TrimtabError."""
    if len(why) > LONGEST_WHY:
        raise UsageError(f"why-not: must have at most {LONGEST_WHY} characters")
    if reach.left_out:
        alone = explain_alone(seen, namespace, name, known, reach)
        return alone.value | {"told": alone.rows, "currency": settings.prices.currency}
    try:
        found = explain_live(seen, namespace, name, known, settings, policy, why)
    except (UnknownPolicy, UnknownGpu) as error:
        raise UsageError(str(error)) from error
    return found.value | {"told": [*found.rows, *found.decided]}


def queue_list(moment: Moment, audience: Audience, query: Query, settings: Settings) -> Any:
    """As `trimtab get queues -o json` and `trimtab queue -o json`, and who uses how much."""
    if not audience.queues:
        raise NotAllowed("you may not see queues", "list and watch of queues.trimtab.dev")
    prices = settings.prices
    waiting = [row for row in line.rows(moment.seen, prices=prices) if audience.sees(row.job.partition("/")[0])]
    found = [_without_others(row, audience) for row in queues.rows(moment.seen, prices)]
    used = usage.used(moment.seen, prices, audience.sees)
    return {"items": found, "line": waiting, "use": used, "currency": prices.currency}


def _without_others(row: queues.QueueRow, audience: Audience) -> queues.QueueRow:
    if audience.namespaces is None:
        return row
    shown = tuple(each for each in row.namespaces if each == "*" or audience.sees(each))
    return replace(row, namespaces=shown)


def overview(moment: Moment, audience: Audience, query: Query, settings: Settings) -> Any:
    """The cluster in short."""
    return views.overview(moment.seen, moment.waits, moment.deciders, audience)


def timeline(moment: Moment, audience: Audience, query: Query, settings: Settings) -> Any:
    """Past, present and what is expected."""
    now, by = moment.seen.snapshot.time, query.get("by") or "type"
    if by not in ("type", "queue", "node"):
        raise UsageError("by: must be type, queue or node")
    begin, end = _time(query, "from", now - BACK_SECONDS), _time(query, "to", now + AHEAD_SECONDS)
    if not 0 < end - begin <= LONGEST_SECONDS:
        raise UsageError(f"to: must be after `from`, by at most {LONGEST_SECONDS / 86400:g} days")
    if not audience.nodes and by == "node":
        raise NotAllowed("you may not see nodes", "list and watch of nodes and gpunodes.trimtab.dev")
    return views.timeline(moment.seen, moment.waits, moment.runs, audience, begin, end, by)


def _time(query: Query, name: str, otherwise: float) -> float:
    text = query.get(name)
    if not text:
        return otherwise
    try:
        found = float(text) if len(text) < 32 else -1.0
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e12:
        raise UsageError(f"{name}: must be a number of POSIX seconds")
    return found


def policies(moment: Moment, audience: Audience, query: Query, settings: Settings) -> Any:
    """As `trimtab policies -o json`, who decides, and what the shadow would have done."""
    shown = [facts for facts in moment.seen.jobs.values() if audience.sees(facts.meta.namespace)]
    return {
        "items": {each.name: each for each in listed()},
        "deciding": moment.deciders.value(),
        "shadow": views.shadow(shown, differences=True),
    }


JOBS_KIND = "llmtrainingjobs.trimtab.dev"
ANSWERS: Mapping[str, tuple[Answer, int]] = {
    "nodes": (nodes, 0),
    "jobs": (jobs, 0),
    "queues": (queue_list, 0),
    "overview": (overview, 0),
    "timeline": (timeline, 0),
    "policies": (policies, 0),
}
"""By name, and how many more parts its address has."""
OF_ONE: Mapping[str, tuple[Answer, int]] = {"jobs": (job, 2)}


def find(rest: tuple[str, ...]) -> tuple[Answer, tuple[str, ...]] | None:
    """Who answers an address below `/api/v1/`, and what is left of it; None where nobody does."""
    name, left = rest[0], rest[1:]
    for table in (ANSWERS, OF_ONE):
        found = table.get(name)
        if found and found[1] == len(left):
            return found[0], left
    return None


def encoded(answer: Answer, moment: Moment, audience: Audience, query: Query, settings: Settings) -> bytes:
    """The answer as JSON, without what the audience must not be told."""
    value = answer(moment, audience, query, settings)
    names = moment.denied(audience)
    if (names.namespaces and answer is not nodes) or (names.namespaces and query.get("form") == "objects"):
        value = redacted(msgspec.to_builtins(value), names)
    return msgspec.json.encode(value)


async def doctor(settings: Settings) -> bytes:
    """As `trimtab doctor -o json`."""
    seen = await gather(settings, certificates=False)
    return msgspec.json.encode(show.value(seen, examine(seen)))
