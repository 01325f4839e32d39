"""The wire: what kube-scheduler 1.36 sent and took (golden files), and everything that Go would read the same way."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.extender.desk import GOLDEN, Object, owner, planned, pod

from trimtab import names
from trimtab.extender import wire
from trimtab.extender.checks import PlaceClaim, claim
from trimtab.extender.wire import WireError
from trimtab.observe.pods import request


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


# --- golden files: recorded from kube-scheduler 1.36.3 ---------------------------------------------------------------
def test_a_filter_request_of_kube_scheduler_is_understood_and_answered_as_it_was_accepted() -> None:
    asked = wire.args((GOLDEN / "filter.request.json").read_bytes())
    request, accepted = golden("filter.request"), golden("filter.response")
    assert asked.node_names() == request["NodeNames"] == accepted["NodeNames"]
    assert (asked.meta().name, asked.nodes) == ("golden-1", None)
    answer = json.loads(wire.untouched(asked))
    assert {key: answer[key] for key in accepted} == accepted
    assert answer.keys() - accepted.keys() == {"Nodes", "FailedAndUnresolvableNodes", "Error"}


def test_its_prioritize_request_is_answered_as_it_was_accepted() -> None:
    asked = wire.args((GOLDEN / "prioritize.request.json").read_bytes())
    accepted = golden("prioritize.response")
    best = next(line["Host"] for line in accepted if line["Score"] == 10)
    ours = json.loads(wire.priorities(asked.node_names(), best))
    assert [line["Host"] for line in ours] == [line["Host"] for line in accepted]
    assert [line["Score"] for line in ours] == [10 * (line["Host"] == best) for line in accepted]


def test_its_preempt_request_is_answered_as_it_was_accepted() -> None:
    asked = wire.preemption_args((GOLDEN / "preempt.request.json").read_bytes())
    assert asked.meta().name == "v-empty"
    assert json.loads(wire.victims(asked.meta_victims)) == golden("preempt.response")
    assert json.loads(wire.victims()) == {"NodeNameToMetaVictims": {}}


def test_its_bind_request_is_answered_as_it_was_accepted() -> None:
    request = golden("bind.request")
    asked = wire.binding_args(encoded(request))
    told = (asked.name, asked.namespace, asked.uid, asked.node)
    assert told == tuple(request[key] for key in ("PodName", "PodNamespace", "PodUID", "Node"))
    assert json.loads(wire.bound()) == golden("bind.response")


def test_answers_have_exactly_the_fields_of_the_api() -> None:
    asked = wire.args(encoded({"Pod": pod("x"), "NodeNames": ["a"]}))
    fields = ["Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"]
    for answer in (wire.untouched(asked), wire.only(asked, "a"), wire.none(asked, {"a": "why"})):
        assert list(json.loads(answer)) == fields


# --- as Go reads -----------------------------------------------------------------------------------------------------
def in_some_case(name: str, dice: random.Random) -> str:
    return "".join(dice.choice((letter.lower(), letter.upper())) for letter in name)


@given(st.randoms(use_true_random=False))
def test_names_of_fields_may_have_any_case(dice: random.Random) -> None:
    said = {"Pod": planned("job7-1-0", "gpu-1"), "Nodes": None, "NodeNames": ["gpu-1", "gpu-2"]}
    asked = wire.args(encoded({in_some_case(name, dice): value for name, value in said.items()}))
    assert asked.node_names() == ["gpu-1", "gpu-2"]
    assert asked.meta().name == "job7-1-0"
    victims = {"gpu-1": {in_some_case("Pods", dice): [pod("a")], in_some_case("NumPDBViolations", dice): 2}}
    preemption = wire.preemption_args(encoded({"pod": pod("x"), in_some_case("NodeNameToVictims", dice): victims}))
    assert json.loads(preemption.meta_victims) == {"gpu-1": {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 2}}


@pytest.mark.parametrize(
    "said",
    [
        b'{"Pod":{},"NodeNames":["a"],"NodeNames":["b"]}',
        b'{"Pod":{},"NodeNames":["a"],"nodenames":["b"]}',
        b'{"Pod":{},"nodenames":["a"],"NodeNames":["b"]}',
        b'{"Pod":{},"NodeNames":["b"],"nodeNames":["a"],"NodeNames":["b"]}',
    ],
)
def test_of_equal_names_the_last_one_counts(said: bytes) -> None:
    assert wire.args(said).node_names() == ["b"]


def test_nodes_that_differ_in_case_are_different_nodes() -> None:
    victims = {"Gpu-1": {"Pods": None}, "gpu-1": {"Pods": [pod("a")]}}
    asked = wire.preemption_args(encoded({"Pod": pod("x"), "NodeNameToVictims": victims}))
    assert json.loads(asked.meta_victims) == {
        "Gpu-1": {"Pods": [], "NumPDBViolations": 0},
        "gpu-1": {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 0},
    }


@pytest.mark.parametrize("absent", ["metadata", "annotations", "ownerReferences", "labels"])
def test_null_is_the_same_as_absent(absent: str) -> None:
    of = planned("job7-1-0", "gpu-1")
    if absent == "metadata":
        of["metadata"] = None
    else:
        of["metadata"][absent] = None
    asked = wire.args(encoded({"Pod": of, "NodeNames": ["gpu-1"], "Nodes": None}))
    found = claim(asked.meta())
    assert (found is None) == (absent in ("metadata", "ownerReferences"))


def test_a_pod_that_another_controller_has_made_claims_its_place_once_it_is_of_a_gang() -> None:
    of = planned("job7-1-0", "gpu-1")
    theirs = {"apiVersion": "batch/v1", "kind": "Job", "name": "pretrain", "uid": "u", "controller": True}
    of["metadata"]["ownerReferences"] = [theirs]
    of["metadata"]["labels"][names.LABEL_MANAGED] = "true"

    def found() -> PlaceClaim | None:
        return claim(wire.args(encoded({"Pod": of, "NodeNames": ["gpu-1"]})).meta())

    assert found() is None
    of["metadata"]["labels"][names.LABEL_JOB_UID] = "uid-job7"
    claimed = found()
    assert claimed
    assert (claimed.job, claimed.node) == ("job7", "gpu-1")


def test_a_pod_of_ours_with_nulls_in_it_is_read_nevertheless() -> None:
    of = planned("job7-1-0", "gpu-1")
    of["spec"] |= {"initContainers": None, "overhead": None, "tolerations": None, "priority": None}
    of["spec"]["containers"].append({"name": "side", "resources": None})
    of["status"] = None
    of["metadata"]["labels"] = None
    whole = wire.args(encoded({"Pod": of, "NodeNames": []})).whole_pod()
    assert whole.spec.containers[0].resources.requests == {names.NVIDIA_GPU: "8"}
    assert len(whole.spec.containers) == 2


def test_fields_that_are_not_known_are_nobody_s_business() -> None:
    of: Object = planned("job7-1-0", "gpu-1") | {"futureField": [1, {"a": None}]}
    asked = wire.args(encoded({"Pod": of, "NodeNames": ["gpu-1"], "Future": {"x": 1}}))
    assert asked.whole_pod().metadata.name == "job7-1-0"


@given(st.lists(st.text(min_size=1), unique=True), st.text(min_size=1))
def test_what_is_offered_is_what_is_in_the_list_however_it_was_written(nodes: list[str], node: str) -> None:
    for ascii_only in (True, False):
        body = json.dumps({"Pod": {}, "NodeNames": nodes}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        try:
            asked = wire.args(body)
            offered = [asked.offers(each) for each in (node, *nodes)]
        except wire.WireError:
            continue  # text that is no UTF-8
        assert offered == [node in nodes, *(True for _ in nodes)]


def test_a_name_made_of_two_others_is_not_on_offer() -> None:
    asked = wire.args(encoded({"Pod": {}, "NodeNames": ["a", "b"]}))
    assert not asked.offers('a", "b')
    assert wire.args(b'{"Pod":{},"NodeNames":["\\u0067pu-1"]}').offers("gpu-1")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_nonsense_is_refused_in_one_way(body: bytes) -> None:
    for read in (wire.args, wire.binding_args, wire.preemption_args):
        with pytest.raises(wire.WireError):
            read(body)


@pytest.mark.parametrize("missing", ["PodName", "PodNamespace", "PodUID", "Node"])
def test_a_binding_must_be_whole(missing: str) -> None:
    with pytest.raises(wire.WireError, match=missing):
        wire.binding_args(encoded({**golden("bind.request"), missing: None}))


def test_whose_pod_it_is_is_told_by_its_controller() -> None:
    several = [{**owner("other"), "controller": None}, owner("job8")]
    meta = wire.args(encoded({"Pod": pod("x", ownerReferences=several), "NodeNames": []})).meta()
    found = claim(meta)
    assert found
    assert (found.gang, found.node) == ("gang team-a/job8", "")


# --- bytes of anybody -------------------------------------------------------------------------------------------------
_WHOLE = json.dumps({"Pod": planned("job7-1-0", "gpu-1"), "NodeNames": ["gpu-1", "gpu-2"], "nodenames": None}).encode()
_PREEMPT = json.dumps(
    {"Pod": pod("stranger"), "NodeNameToVictims": {"n": {"Pods": [pod("x")], "NumPDBViolations": 1}}}
).encode()
_BIND = json.dumps({"PodName": "a", "PodNamespace": "b", "PodUID": "c", "Node": "d", "node": "e"}).encode()
_RUBBISH = st.sampled_from(
    [b"\xff", b"\\ud800", b"\x00", b"null", b"1e999", b"9" * 5000, b"[" * 3000, b"{", b'"', b"NaN"]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A request of kube-scheduler's, with some bytes changed, put in or taken out."""
    body = bytearray(draw(st.sampled_from([_WHOLE, _PREEMPT, _BIND])))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 6))] = draw(_RUBBISH | st.binary(max_size=6))
    return bytes(body)


@given(mutated() | st.binary(max_size=60))
def test_no_bytes_make_it_stumble(body: bytes) -> None:
    with suppress(WireError):
        asked = wire.args(body)
        for read in (asked.meta, asked.whole_pod, asked.node_names, asked.node_items, lambda: asked.offers("gpu-1")):
            with suppress(WireError):
                read()
        with suppress(WireError):
            request(asked.whole_pod(), names.NVIDIA_GPU)
    with suppress(WireError):
        wire.binding_args(body)
    with suppress(WireError):
        wire.preemption_args(body).meta()


@pytest.mark.parametrize("place", [b"nvidia.com/gpu", b"uid-job7-1-0"])
@pytest.mark.parametrize("status", [b'{"phase": "Pending"}', b'{"phase": null}'], ids=["as it is", "with a null"])
def test_a_pod_that_is_not_utf_8_is_refused(place: bytes, status: bytes) -> None:
    body = _WHOLE.replace(b'{"phase": "Pending"}', status).replace(place, b"\xff\xfe")
    with pytest.raises(WireError):
        wire.args(body).whole_pod()
