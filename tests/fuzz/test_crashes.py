"""What fuzzing has found so far, each as the shortest input that shows it. (Inputs as they came: `corpus`.)"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save
from tests.builders import A100, changed, job, job_object, node, plan_of, snapshot

from trimtab.api.status import JobStatus
from trimtab.extender import wire
from trimtab.interop import admission, workload
from trimtab.kube.objects import Meta, WorkloadObject
from trimtab.observe import jobs
from trimtab.telemetry.metrics import REGISTRY
from trimtab_lab import workloads
from trimtab_lab.workloads.textfile import FileError
from trimtab_policy import policy
from trimtab_policy.learned import rudder, store, worth
from trimtab_policy.perf import correction
from trimtab_policy.perf.lessons import Key, State

Json = dict[str, Any]
SLICE: Json = {"domainCount": 1, "valuesPerLevel": [{"universal": "r1"}]}


def kueue(spec: Json, topology: Json | None = None) -> WorkloadObject:
    conditions = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")]
    assigned = {"name": "main", "count": 1} | ({"topologyAssignment": topology} if topology else {})
    status = {"conditions": conditions, "admission": {"clusterQueue": "c", "podSetAssignments": [assigned]}}
    raw = [msgspec.Raw(json.dumps(part).encode()) for part in ({"podSets": [{"count": 1} | spec]}, status)]
    return WorkloadObject(Meta("w"), *raw)


@pytest.mark.parametrize(
    "template", [{"spec": []}, {"spec": {"containers": 7}}, {"spec": {"containers": ["x"]}},
     {"spec": {"containers": [{"resources": 1}]}}]
)  # fmt: skip
def test_a_workload_with_no_pod_template_is_no_workload(template: Json) -> None:
    with pytest.raises(msgspec.DecodeError):
        workload.read_workload(kueue({"template": template}))


@pytest.mark.parametrize(
    "slices",
    [
        [SLICE | {"valuesPerLevel": []}],
        [SLICE | {"valuesPerLevel": [{"universal": "a"}, {"universal": "b"}]}],
        [SLICE | {"domainCount": 2, "valuesPerLevel": [{"individual": {"roots": ["a"]}}]}],
        [SLICE | {"domainCount": -1}],
        [SLICE | {"domainCount": 1 << 31}],
    ],
)
def test_a_topology_that_does_not_fit_its_levels_is_told_of(slices: list[Json]) -> None:
    read = workload.read_workload(kueue({"template": {}}, {"levels": ["rack"], "slices": slices}))
    said = admission.admission(read, {})
    assert isinstance(said, str)
    assert "cannot be understood" in said


def test_a_quantity_that_is_a_list_is_a_mistake_and_no_bug() -> None:
    def bugs() -> float:
        return REGISTRY.get_sample_value("trimtab_isolated_errors_total", {"part": "spec"}) or 0.0

    before = bugs()
    assert "no quantity" in jobs.facts(job_object(spec={"resources.memoryPerGpu": [1]})).error
    assert bugs() == before


def test_a_plan_can_be_written_down_however_large_its_micro_batch_would_be() -> None:
    asks = job(sequence_length=1, global_batch_size=1 << 20, gpus=(1, 1))
    (placed,) = policy.load("fcfs").decide(snapshot([node("n1")], [asks])).placements
    status = JobStatus(plan=plan_of(placed), last_epoch=1)
    assert JobStatus.model_validate(status.to_wire()) == status


def test_lessons_beyond_counting_are_still_learned() -> None:
    key = Key("gpt2", A100, "x")
    full = State(count=1 << 53)
    assert correction.learn(full, key, "job", 0.1).known[0].seen[0].error == 0.1


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        (wire.preemption_args, {"NodeNameToMetaVictims": "x"}),
        (wire.preemption_args, {"NodeNameToMetaVictims": [1]}),
        (wire.args, {"Nodes": "x"}),
        (wire.args, {"Nodes": [{}]}),
    ],
)
def test_what_is_no_map_goes_back_to_nobody(verb: Any, body: Json) -> None:
    with pytest.raises(wire.WireError, match="is no"):
        verb(json.dumps({"Pod": {}} | body).encode())


def test_a_log_without_jobs_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "log.json").write_text("[]")
    with pytest.raises(FileError, match="no job"):
        workloads.read_trace(path, "philly")


def test_a_millionth_of_a_gpu_takes_a_whole_one(tmp_path: Path) -> None:
    (path := tmp_path / "t.csv").write_text("timestamp,duration,num_gpus\n2017-10-09 07:02:42,60,1e-9\n")
    found, _ = workloads.read_trace(path, "philly-csv")
    assert found.gpus.tolist() == [1]


CARD = {
    "agent": "x\ny", "task": "", "schema": "s", "catalogue": "", "commit": "", "seeds": [], "score": 0,
    "score_name": "", "config": {}, "sha256": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("arrays", "card", "says"),
    [
        (save({"a": np.zeros(2, np.complex64)}), {}, "holds complex64"),
        (save({"a": np.zeros(2)}), {"schema": "other"}, "'x\\ny' learned from"),
        (save({"a": np.zeros(2)}), {"config": "[" * 5000}, "no card"),
    ],
)
def test_weights_from_elsewhere_are_refused_in_a_line(tmp_path: Path, arrays: bytes, card: Json, says: str) -> None:
    (tmp_path / "w.safetensors").write_bytes(arrays)
    words = json.dumps(changed(CARD, {"sha256": hashlib.sha256(arrays).hexdigest()} | card)).replace('"[[', "[[")
    (tmp_path / "w.json").write_text(words)
    with pytest.raises(store.WeightsError) as refusal:
        store.load(tmp_path / "w.json", "s")
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_weights_whose_price_of_gpus_is_beyond_all_numbers_end_in_a_decision() -> None:
    """An exponential of two finite figures was not finite: OverflowError."""
    network = worth.analytic()
    network.constants[[worth.CONSTANTS.index("thrift"), worth.CONSTANTS.index("thrift_load")]] = 1.0, -1e6
    decision = rudder.Rudder(network).decide(snapshot([node("n1")], [job(gpus=(1, 1))]))
    assert [each.job for each in (*decision.placements, *decision.pending)] == ["uid-job"]
