"""GPUs that are still held: charged once, inherited once, and never given to two."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from tests.builders import MOMENT, NOW, gang_pod, job_object, leaving, node_object, placement, plan_of

from trimtab.api.status import JobStatus, Leaving, PlanGrant, PlanTerms, StopRequest
from trimtab.kube.objects import JobObject, PodObject
from trimtab.observe.node_usage import Claim
from trimtab.observe.snapshot import Caches, ClusterObserver, Observation
from trimtab_policy.types import Grant, StopCause

N1, N2 = node_object("n1"), node_object("n2")


def look(
    pods: Iterable[PodObject], jobs: Iterable[JobObject], promised: Iterable[Claim] = (), nodes: int = 2
) -> Observation:
    return ClusterObserver(()).observe(Caches((N1, N2)[:nodes], pods, jobs), NOW, promised)


def free(seen: Observation) -> dict[str, int]:
    return {node.name: node.free_gpus for node in seen.snapshot.nodes}


def planned(name: str, shares: dict[str, int], *waits_for: Leaving, epoch: int = 1) -> JobObject:
    plan = plan_of(placement(f"uid-{name}", shares), epoch, waits_for=waits_for)
    return job_object(name, status=JobStatus(plan=plan, last_epoch=epoch))


def gang(name: str, shares: dict[str, int], epoch: int = 1) -> list[PodObject]:
    """The running pods of a job."""
    nodes = enumerate(shares.items())
    return [gang_pod(name, epoch, rank, node, gpus=gpus, phase="Running") for rank, (node, gpus) in nodes]


def moving(name: str, shares: dict[str, int], to: dict[str, int], *waits_for: Leaving) -> JobObject:
    """A job that was asked to stop and goes on elsewhere."""
    stop = StopRequest(
        epoch=1,
        cause=StopCause.MOVED,
        message="it moves",
        requested_time=MOMENT,
        deadline_time=MOMENT,
        successor=plan_of(placement(f"uid-{name}", to), 2, waits_for=waits_for),
    )
    return job_object(name, status=JobStatus(plan=plan_of(placement(f"uid-{name}", shares)), last_epoch=1, stop=stop))


def test_what_a_plan_waits_for_is_not_charged_twice() -> None:
    jobs = [planned("old", {"n1": 8}), planned("new", {"n1": 8}, leaving("old"))]
    seen = look(gang("old", {"n1": 8}), jobs)
    assert free(seen) == {"n1": 0, "n2": 8}
    assert seen.overallocated == {}
    assert free(look([], jobs[1:])) == {"n1": 0, "n2": 8}


def test_more_than_is_left_behind_is_charged() -> None:
    jobs = [planned("old", {"n1": 2}), planned("new", {"n1": 6}, leaving("old"))]
    assert free(look(gang("old", {"n1": 2}), jobs))["n1"] == 2
    less = [planned("old", {"n1": 6}), planned("new", {"n1": 2}, leaving("old"))]
    assert free(look(gang("old", {"n1": 6}), less))["n1"] == 2


def test_two_heirs_never_get_the_same_gpu() -> None:
    heirs = [planned("one", {"n1": 4}, leaving("old")), planned("two", {"n1": 4}, leaving("old"))]
    seen = look(gang("old", {"n1": 4}), [planned("old", {"n1": 4}), *heirs])
    assert free(seen)["n1"] == 0
    assert seen.overallocated == {}


def test_a_later_gang_of_the_job_that_is_waited_for_is_charged_in_full() -> None:
    jobs = [planned("old", {"n1": 4}, epoch=2), planned("new", {"n1": 4}, leaving("old", 1))]
    assert free(look(gang("old", {"n1": 4}, epoch=2), jobs))["n1"] == 0


def test_a_promise_counts_on_what_is_left_behind_before_it_is_written() -> None:
    promised = Claim("uid-new", 1, placement("uid-new", {"n1": 8}), ((leaving("old").digest or "", 1),))
    seen = look(gang("old", {"n1": 8}), [planned("old", {"n1": 8}), job_object("new")], [promised])
    assert free(seen)["n1"] == 0
    assert seen.overallocated == {}
    old = next(job for job in seen.snapshot.jobs if job.name == "old")
    assert (old.movable_from, old.expected_finish) == (float("inf"), None), "somebody waits for it already"


def test_in_which_order_gpus_were_given_is_known_of_plans_and_of_promises_and_the_highest_of_all() -> None:
    """Whoever decides next numbers on from there: also where a gang has been asked to move and has not done so yet."""
    first, second, third = (PlanTerms(grants=(PlanGrant(gpus=8, order=n, type_order=n),)) for n in (3, 4, 5))
    stays = job_object(
        "stays", status=JobStatus(plan=plan_of(placement("uid-stays", {"n1": 8}), terms=first), last_epoch=1)
    )
    stop = StopRequest(
        epoch=1,
        cause=StopCause.MOVED,
        message="it moves",
        requested_time=MOMENT,
        deadline_time=MOMENT,
        successor=plan_of(placement("uid-goes", {"n1": 8}), 2, terms=third),
    )
    plan = plan_of(placement("uid-goes", {"n2": 8}), terms=second)
    goes = job_object("goes", status=JobStatus(plan=plan, last_epoch=1, stop=stop))
    promised = Claim("uid-new", 1, placement("uid-new", {"n2": 8}), grants=(Grant(8, 7, 6),))
    seen = look([], [stays, goes, job_object("new"), planned("old", {"n2": 8})], [promised]).snapshot
    assert {job.name: job.grants for job in seen.jobs} == {
        "stays": (Grant(8, 3, 3),), "goes": (Grant(8, 4, 4),), "new": (Grant(8, 7, 6),), "old": (),
    }  # fmt: skip
    assert seen.granted == 7
    assert look([], [stays, goes]).snapshot.granted == 5


def test_where_a_gang_moves_to_is_kept_for_it_from_the_request_on() -> None:
    assert free(look(gang("job", {"n1": 8}), [moving("job", {"n1": 8}, {"n2": 8})])) == {"n1": 0, "n2": 0}
    assert free(look(gang("job", {"n1": 8}), [moving("job", {"n1": 8}, {"n1": 4})])) == {"n1": 0, "n2": 8}


def test_two_gangs_that_change_places_take_no_room_besides() -> None:
    jobs = [moving("a", {"n1": 8}, {"n2": 8}, leaving("b")), moving("b", {"n2": 8}, {"n1": 8}, leaving("a"))]
    seen = look([*gang("a", {"n1": 8}), *gang("b", {"n2": 8})], jobs)
    assert (free(seen), seen.overallocated) == ({"n1": 0, "n2": 0}, {})


# --- whatever comes when ---------------------------------------------------------------------------------------------
HEIRS = st.lists(st.tuples(st.integers(1, 8), st.sets(st.integers(0, 2), max_size=3)), max_size=4)
OLD = st.lists(st.integers(1, 4), max_size=3)


@given(OLD, HEIRS)
def test_a_node_is_charged_the_most_that_can_be_there_at_one_time(
    old: list[int], heirs: list[tuple[int, set[int]]]
) -> None:
    """Every order in which old gangs go and their heirs come, against what the books say at once."""
    pods = [pod for i, gpus in enumerate(old) for pod in gang(f"old{i}", {"n1": gpus})]
    jobs = [planned(f"old{i}", {"n1": gpus}) for i, gpus in enumerate(old)]
    waits = [{i for i in named if i < len(old)} for _, named in heirs]
    for number, ((gpus, _), named) in enumerate(zip(heirs, waits, strict=True)):
        jobs.append(planned(f"heir{number}", {"n1": gpus}, *(leaving(f"old{i}") for i in sorted(named))))
    most = 0
    for gone, come in product(product((0, 1), repeat=len(old)), product((0, 1), repeat=len(heirs))):
        if all(gone[i] for here, named in zip(come, waits, strict=True) if here for i in named):
            stay = sum(gpus for gpus, left_it in zip(old, gone, strict=True) if not left_it)
            most = max(most, stay + sum(gpus for (gpus, _), here in zip(heirs, come, strict=True) if here))
    seen = look(pods, jobs, nodes=1)
    assert free(seen) == {"n1": 8 - most}
    assert seen.overallocated == ({"n1": most - 8} if most > 8 else {})
    assert most >= sum(gpus for gpus, _ in heirs), "once all have gone, everybody has GPUs of his own"
