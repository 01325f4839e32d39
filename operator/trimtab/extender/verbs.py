"""The four verbs: bytes of a request in, bytes of an answer out.

    filter       the node of the plan, or why not even that one; pods that are not ours pass untouched
    prioritize   10 for the node of the plan, 0 for all others
    preempt      nobody is evicted for a pod of ours: its gang was planned around what runs. Others: as proposed
    bind         off unless asked for; binds to the node of the plan only, and says so only when it has happened

All but bind only read, change nothing, and give the same answer however often they are asked.

A refusal that rests on our own copy of the cluster takes a second look: the copy may be a few milliseconds behind that
of kube-scheduler, which tries a refused pod again only when something else happens, in a quiet cluster minutes later.
While the API server is away the copy counts for nothing, and only the plan is checked.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec

from trimtab.errors import ApiError, Conflict, NotFound, Unreachable
from trimtab.extender import wire
from trimtab.extender.checks import AdmissionResult, Because, PlaceClaim, claim, judge
from trimtab.extender.pod_index import BooksWatch
from trimtab.kube.client import KubeClient
from trimtab.kube.objects import PodObject
from trimtab.kube.resources import PODS
from trimtab.names import GPU_RESOURCES
from trimtab.observe.pods import request
from trimtab.telemetry.extender_metrics import EXTENDER_SECOND_LOOKS, EXTENDER_VERDICTS

SECOND_LOOK_SECONDS = 0.02
"""Short, because kube-scheduler asks for one pod at a time: all others wait as long."""
SWITCHED_OFF = "this extender does not bind: set extender.bind, or take bindVerb out of kube-scheduler's configuration"

Verb = Callable[[bytes], Awaitable[bytes]]

_POD = msgspec.json.Decoder(PodObject)


class Verbs:
    """What kube-scheduler may ask. All raise WireError for a request that is none."""

    def __init__(self, watch: BooksWatch, binder: KubeClient | None = None) -> None:
        self._watch = watch
        self._binder = binder

    @property
    def by_path(self) -> dict[str, Verb]:
        """Every verb, by where it is asked."""
        return {
            "/filter": self.filter,
            "/prioritize": self.prioritize,
            "/preempt": self.preempt,
            "/bind": self.bind,
        }

    async def filter(self, body: bytes) -> bytes:
        """ExtenderArgs -> ExtenderFilterResult."""
        asked = wire.args(body)
        ours = claim(asked.meta())
        if ours is None:
            _count("filter", "foreign")
            return wire.untouched(asked)
        gpus = _gpus(asked.whole_pod())
        verdict = await self._judge(ours, gpus, asked.offers)
        _count("filter", "ours", verdict.because or "passed")
        if verdict.because is None:
            return wire.only(asked, ours.node)
        return wire.none(asked, _reasons(asked, ours, verdict))

    async def prioritize(self, body: bytes) -> bytes:
        """ExtenderArgs -> HostPriorityList."""
        asked = wire.args(body)
        ours = claim(asked.meta())
        _count("prioritize", "ours" if ours else "foreign")
        return wire.priorities(asked.node_names(), ours.node if ours else "")

    async def preempt(self, body: bytes) -> bytes:
        """ExtenderPreemptionArgs -> ExtenderPreemptionResult."""
        asked = wire.preemption_args(body)
        ours = claim(asked.meta())
        _count("preempt", "ours" if ours else "foreign")
        return wire.victims() if ours else wire.victims(asked.meta_victims)

    async def bind(self, body: bytes) -> bytes:
        """ExtenderBindingArgs -> ExtenderBindingResult."""
        if self._binder is None:
            return wire.bound(SWITCHED_OFF)
        asked = wire.binding_args(body)
        whose = "foreign"
        try:
            pod = await self._pod(self._binder, asked)
            ours = claim(pod.metadata)
            whose = "ours" if ours else "foreign"
            if problem := await self._against(asked, ours, pod):
                _count("bind", whose, "error")
                return wire.bound(problem)
            if pod.spec.node_name != asked.node:
                await self._bind(self._binder, asked)
        except ApiError as error:
            _count("bind", whose, "error")
            return wire.bound(str(error))
        _count("bind", whose, "bound")
        return wire.bound()

    # --- judging ----------------------------------------------------------------------------------------------------
    async def _judge(self, ours: PlaceClaim, gpus: int, offered: Callable[[str], bool]) -> AdmissionResult:
        index = self._watch.index
        verdict = judge(ours, gpus, offered, None if self._watch.trouble else index)
        if not verdict.by_ledger:
            return verdict
        end = time.monotonic() + SECOND_LOOK_SECONDS
        while verdict.by_ledger and (left := end - time.monotonic()) > 0 and await index.news(left):
            verdict = judge(ours, gpus, offered, None if self._watch.trouble else index)
        EXTENDER_SECOND_LOOKS.labels("refused" if verdict.because else "passed").inc()
        return verdict

    # --- binding ----------------------------------------------------------------------------------------------------
    async def _against(self, asked: wire.BindingArgs, ours: PlaceClaim | None, pod: PodObject) -> str:
        """What speaks against a binding; pods/binding itself would take full, cordoned and missing nodes."""
        if ours is None:
            unknown = not self._watch.trouble and asked.node not in self._watch.index.nodes
            return f"{asked.node} does not exist" if unknown else ""
        verdict = await self._judge(ours, _gpus(pod), lambda node: node == asked.node)
        return verdict.node if verdict.because else ""

    async def _pod(self, binder: KubeClient, asked: wire.BindingArgs) -> PodObject:
        """The pod of this UID as it is now. Raises ApiError."""
        path = PODS.path(asked.namespace, asked.name)
        pod = _POD.decode(await binder.get(path))
        if pod.metadata.uid != asked.uid:
            raise NotFound(f"pod {pod.metadata.key} is another one by now: its UID is {pod.metadata.uid}")
        return pod

    async def _bind(self, binder: KubeClient, asked: wire.BindingArgs) -> None:
        """Bind; a pod that turns out to be there is bound. Raises ApiError."""
        try:
            await binder.bind(asked.namespace, asked.name, asked.uid, asked.node)
        except (Conflict, Unreachable):
            if (await self._pod(binder, asked)).spec.node_name != asked.node:
                raise


def _gpus(pod: PodObject) -> int:
    return sum(request(pod, resource) for resource in GPU_RESOURCES)


def _reasons(asked: wire.Args, ours: PlaceClaim, verdict: AdmissionResult) -> dict[str, str]:
    """Why not, for every node that was asked about: kube-scheduler counts equal texts and shows them to the user."""
    reasons = dict.fromkeys(asked.node_names(), verdict.others)
    if verdict.because not in (Because.ELSEWHERE, Because.NO_PLAN):
        reasons[ours.node] = verdict.node
    return reasons


def _count(verb: str, whose: str, result: str = "passed") -> None:
    EXTENDER_VERDICTS.labels(verb, whose, result).inc()
