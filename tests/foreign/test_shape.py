"""The shape of jobs of other kinds: what is written into a suspended one, and what its user gets back."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from tests.foreign.test_read import COMMAND, KINDS

from trimtab import names
from trimtab.errors import UsageError
from trimtab.foreign import shape
from trimtab.foreign.in_cluster import own_spec
from trimtab.foreign.kinds import Json, row_of
from trimtab.foreign.tables import Kind

FREE = [COMMAND[0], COMMAND[1], COMMAND[2].replace("--nproc_per_node=8 --nnodes=4 ", "")]
"""The same training, which leaves nodes and processes to whoever starts it."""
SHAPED = ("Job", "PyTorchJob")


def document(name: str, command: list[str] = FREE, **stated: str) -> Json:
    """A job of four pods with eight GPUs each."""
    version, kind, spec = KINDS[name]
    annotations = {names.STATED[field]: value for field, value in stated.items()}
    meta = {"name": "llama", "namespace": "team", "annotations": annotations}
    found: Json = json.loads(
        json.dumps({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}).replace(
            json.dumps(COMMAND), json.dumps(command)
        )
    )
    if name == "Job":
        found["spec"] |= {"completions": 4, "completionMode": "Indexed"}
    return found


def described(found: Json) -> tuple[Json, str, Kind]:
    row = row_of(found)
    assert row
    return found, *row


def taken(name: str, nodes: int, gpus: int, found: Json, said: str = "") -> tuple[Json, str]:
    made, note = shape.written(*described(found), said, nodes, gpus)
    assert shape.shape_of(*described(made)) == (nodes, gpus)
    return made, note or ""


@pytest.mark.parametrize("name", SHAPED)
@drawn(shapes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 8)), min_size=1, max_size=4))
def test_whatever_is_written_its_user_gets_back_what_he_gave(name: str, shapes: list[tuple[int, int]]) -> None:
    found, said = document(name, gpus="4-64"), ""
    own = deepcopy(found)
    for nodes, gpus in shapes:
        found, said = taken(name, nodes, gpus, found, said)
        before = shape.given(*described(found), said)
        assert (before.document, before.choice) == (own, "ours")
        assert taken(name, nodes, gpus, found, said) == (found, said), "again is the same"
    assert taken(name, 4, 8, found, said) == (own, "")
    del found["metadata"]["annotations"][names.STATED["gpus"]]
    assert shape.given(*described(found), said).choice == ("ours" if said else "")


def test_what_is_written_says_the_same_everywhere() -> None:
    made, note = taken("Job", 2, 4, document("Job", gpus="4-64"))
    spec = made["spec"]
    assert (spec["parallelism"], spec["completions"]) == (2, 2)
    assert spec["template"]["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert json.loads(note) == {
        "/spec/parallelism": [4, 2],
        "/spec/completions": [4, 2],
        "/spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu": [8, "4"],
    }
    both = document("PyTorchJob", gpus="4-64")
    both["spec"]["nprocPerNode"] = "8"
    made, _ = taken("PyTorchJob", 1, 4, both)
    roles = made["spec"]["pytorchReplicaSpecs"]
    assert (roles["Worker"]["replicas"], made["spec"]["nprocPerNode"]) == (0, "4")
    assert "replicas" not in roles["Master"]
    limits = [each["template"]["spec"]["containers"][0]["resources"]["limits"] for each in roles.values()]
    assert limits == [{"nvidia.com/gpu": "4"}] * 2


@pytest.mark.parametrize("name", SHAPED)
def test_what_its_user_writes_over_it_counts_and_the_range_does_not_any_more(name: str) -> None:
    found, said = taken(name, 2, 8, document(name, gpus="4-64", elasticity="Elastic"))
    holder = found["spec"] if name == "Job" else found["spec"]["pytorchReplicaSpecs"]["Worker"]
    holder["parallelism" if name == "Job" else "replicas"] = 3
    before = shape.given(*described(found), said)
    assert before.choice == "theirs"
    assert before.document["spec"] == found["spec"]
    assert before.document["metadata"]["annotations"] == {}
    assert shape.given(*described(found), "").choice == "ours", "without the note it is asked for anew"


@pytest.mark.parametrize(
    "note",
    [
        '{"/spec/suspend": [false, true]}',
        "[",
        "{}",
        '{"/spec/template/spec/hostNetwork": [true, null]}',
        '{"x": 1}',
        '{"/spec/template/spec/containers/' + 5000 * "9" + '": [1, 2]}',
    ],
)
def test_a_note_that_somebody_has_forged_changes_nothing(note: str) -> None:
    found = document("Job")
    assert shape.given(*described(found), note).document == found


def test_a_kind_whose_number_of_pods_cannot_change_is_as_its_user_has_it() -> None:
    found = document("JobSet", gpus="4-64")
    assert shape.given(*described(found), "") == shape.Given(found)


def problem(found: Json) -> str:
    *_, read = own_spec([found])
    return next(shape.problems(*described(found), read), "")


def test_more_pods_than_the_smallest_gang_has_may_not_be_of_roles_whose_number_stays() -> None:
    """Fuzzing found it: there would be fewer than no pods of the other role."""
    found = document("PyTorchJob", gpus="8-64")
    found["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
    assert "2 pods of its gang are of roles whose number stays" in problem(found)


def test_nothing_keeps_the_shape_from_being_chosen_where_only_the_plan_says_it() -> None:
    assert problem(document("Job", gpus="8-64")) == ""
    assert problem(document("PyTorchJob", gpus="8-64", gpus_per_node="4-8")) == ""
    same = [FREE[0], FREE[1], FREE[2].replace("torchrun ", "torchrun --nproc_per_node=8 ")]
    assert problem(document("Job", same, gpus="8-64")) == "", "pods keep their GPUs"


def told(words: str) -> list[str]:
    return [FREE[0], FREE[1], FREE[2].replace("torchrun ", f"torchrun {words} ")]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (document("JobSet", gpus="8-64"), "trimtab.dev/gpus is a range, and the number of its pods cannot be changed"),
        (document("Job", told("--nnodes=4"), gpus="8-64"), "torchrun nnodes says 4"),
        (document("Job", told("--nnodes=1:4"), gpus="8-64"), "torchrun nnodes says 1:4"),
        (document("Job", told("--standalone"), gpus="8-64"), "torchrun --standalone says 1"),
        (document("Job", told("--nproc_per_node=4"), gpus="8-64"), "torchrun nproc_per_node says 4"),
        (
            document("Job", told("--nproc_per_node=8"), gpus="8-64", gpus_per_node="4-8"),
            "torchrun nproc_per_node says 8",
        ),
        (document("Job", gpus="8-64", gpus_per_node="4"), "trimtab.dev/gpus-per-node is 4, and its pods ask for 8"),
        (document("Job", gpus="8-64", global_batch_size="64"), ""),
    ],
)
def test_what_contradicts_a_plan_is_named(found: Json, words: str) -> None:
    assert words in problem(found)


def test_counts_in_the_environment_of_a_container_are_named_too() -> None:
    def with_variable(**variable: object) -> str:
        found = document("Job", gpus="8-64")
        found["spec"]["template"]["spec"]["containers"][0]["env"] = [variable]
        return problem(found)

    assert "environment WORLD_SIZE says 32" in with_variable(name="WORLD_SIZE", value="32")
    assert "environment PET_NNODES says 4" in with_variable(name="PET_NNODES", value="4")
    assert with_variable(name="PET_NPROC_PER_NODE", value="gpu") == ""
    assert with_variable(name="WORLD_SIZE", valueFrom={"fieldRef": {}}) == ""


def test_a_batch_that_would_change_with_the_number_of_gpus_is_named() -> None:
    words = FREE[2].replace("--global-batch-size 256 ", "")
    found = document("Job", [*FREE[:2], words], gpus="8-64", global_batch_size="256")
    assert "micro-batch-size says 1" in problem(found)


def test_processes_of_a_pod_that_are_not_its_gpus_are_named() -> None:
    found = document("PyTorchJob", gpus="8-64", gpus_per_node="4-8")
    found["spec"]["nprocPerNode"] = "2"
    assert problem(found) == "spec.nprocPerNode is 2, and its pods have 8 GPUs"


def test_a_range_and_what_goes_with_it_become_those_of_a_job_of_ours() -> None:
    spec, *_ = own_spec([document("Job", gpus="8-64", gpus_per_node="4-8", elasticity="Elastic", resharding="true")])
    assert spec["resources"]["gpus"] == {"min": 8, "max": 64}
    assert spec["resources"]["gpusPerNode"] == {"min": 4, "max": 8}
    assert spec["elasticity"] == {"policy": "Elastic", "checkpoint": {"resharding": True}}
    assert own_spec([document("Job", gpus="8-64")])[0]["elasticity"] == {"policy": "Moldable"}
    assert own_spec([document("Job")])[0]["elasticity"] == {"policy": "Fixed"}


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"gpus": "64-8"}, "the fewest, at least 1, come first"),
        ({"gpus": "0-8"}, "the fewest, at least 1, come first"),
        ({"gpus": "8-"}, "no whole number"),
        ({"steps": "8-64"}, "no whole number"),
        ({"elasticity": "Elastic"}, "trimtab.dev/gpus is no range"),
        ({"gpus": "8-64", "elasticity": "Maybe"}, "it has to be Fixed, Moldable, Elastic"),
        ({"gpus": "8-64", "resharding": "yes"}, "it has to be true or false"),
    ],
)
def test_what_is_no_range_or_contradicts_one_is_named(stated: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match="llama") as error:
        own_spec([document("Job", **stated)])
    assert words in str(error.value)
