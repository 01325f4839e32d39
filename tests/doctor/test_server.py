"""The API server: its version, and our kinds as it has them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.doctor.world import crd, crds, healthy, only, wrong

from trimtab.api.schema import definitions
from trimtab.doctor.checks import server
from trimtab.doctor.findings import Reason, Severity
from trimtab.doctor.inventory import Crd, Seen, Unknown, Version

JOBS = "llmtrainingjobs.trimtab.dev"


def edited(edit: Any, name: str = JOBS) -> Seen:
    """With one CRD changed; `edit` gets the definition, and its schema."""
    definition = copy.deepcopy(definitions()[name])
    edit(definition, definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    return healthy(crds=crds() | {name: crd(definition)})


def test_a_server_that_does_not_answer_is_an_error_with_the_reason() -> None:
    finding = only(server.reachable, Seen(healthy().settings, "n", Unknown("connection refused")))
    assert (finding.level, finding.reason) == (Severity.ERROR, Reason.UNREACHABLE)
    assert "connection refused" in finding.message


@pytest.mark.parametrize(
    ("minor", "reason"),
    [("31", Reason.SERVER_TOO_OLD), ("32", None), ("37", None), ("36+", None), ("38", Reason.SERVER_UNTESTED)],
)
def test_versions_that_we_know(minor: str, reason: Reason | None) -> None:
    assert only(server.version, healthy(version=Version("1", minor, f"v1.{minor}.0"))).reason == reason


def test_the_crds_of_this_version_are_well() -> None:
    assert only(server.crds, healthy()).level is Severity.OK


def test_a_crd_that_is_missing_not_established_or_not_served_is_told_apart() -> None:
    (missing,) = wrong(server.crds, healthy(crds=crds() | {JOBS: None}))
    assert missing.reason is Reason.CRD_MISSING
    assert missing.fix.startswith("kubectl apply --server-side --force-conflicts -f manifests/crds")

    there = crds()[JOBS]
    assert there
    meta = there.metadata
    (waiting,) = wrong(server.crds, healthy(crds=crds() | {JOBS: Crd(meta, there.spec)}))
    assert waiting.reason is Reason.CRD_NOT_ESTABLISHED

    (unserved,) = wrong(server.crds, edited(lambda d, _: d["spec"]["versions"][0].update(served=False)))
    assert unserved.reason is Reason.CRD_NOT_SERVED


def test_a_field_that_their_schema_lacks_is_an_error_and_named() -> None:
    (pruned,) = wrong(server.crds, edited(lambda _, s: s["properties"]["status"]["properties"].pop("leaderEpoch")))
    assert (pruned.level, pruned.reason) == (Severity.ERROR, Reason.CRD_PRUNES_FIELDS)
    assert "lacks status.leaderEpoch:" in pruned.message
    assert pruned.objects == (f"CustomResourceDefinition/{JOBS}",)


def test_of_a_subtree_that_is_missing_only_its_root_is_told() -> None:
    ours: dict[str, Any] = {"properties": {"spec": {"properties": {"a": {"properties": {"b": {}, "c": {}}}}}}}
    assert server.differences(ours, {"properties": {"spec": {"properties": {}}}}) == (["spec.a"], [])


def test_below_what_keeps_unknown_fields_nothing_is_dropped() -> None:
    theirs = {"x-kubernetes-preserve-unknown-fields": True}
    missing, other = server.differences({"properties": {"a": {}}}, theirs)
    assert (missing, other) == ([], ["a", "the object: preserve-unknown-fields"])


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (
            lambda d, s: s["properties"]["spec"]["properties"]["maxRestarts"].update(maximum=7),
            "spec.maxRestarts: maximum",
        ),
        (lambda d, s: s["properties"]["status"].pop("x-kubernetes-validations"), "status: validation rules"),
        (lambda d, s: s["properties"]["spec"]["properties"].update(colour={}), "spec.colour is not known here"),
        (lambda d, s: d["spec"]["versions"][0].pop("subresources"), "no subresource status"),
        (lambda d, s: d["spec"].update(scope="Cluster"), "scope Cluster"),
    ],
)
def test_what_differs_otherwise_is_a_warning_that_names_it(edit: Any, told: str) -> None:
    (finding,) = wrong(server.crds, edited(edit))
    assert (finding.level, finding.reason) == (Severity.WARNING, Reason.CRD_DIFFERS)
    assert told in finding.message


def test_words_for_people_are_no_difference() -> None:
    def reword(_: Any, schema: dict[str, Any]) -> None:
        schema["properties"]["spec"]["description"] = "Something else."

    assert only(server.crds, edited(reword)).level is Severity.OK


def test_items_of_lists_and_values_of_maps_are_looked_into() -> None:
    ours = {"items": {"properties": {"a": {}}}, "additionalProperties": {"properties": {"b": {"type": "string"}}}}
    theirs = {"items": {"properties": {}}, "additionalProperties": {"properties": {"b": {"type": "integer"}}}}
    assert server.differences(ours, theirs) == (["[].a"], ["{}.b: type"])
