"""Clusters to simulate: presets, what somebody types, and lists of nodes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from trimtab_lab.workloads.clusters import (
    cluster,
    gpus_by_type,
    preset,
    preset_names,
    read_nodes,
)
from trimtab_lab.workloads.textfile import FileError
from trimtab_policy.placement.capacity import Capacity
from trimtab_policy.sim import gputypes
from trimtab_policy.sim.typed_cluster import ClusterError, typed
from trimtab_policy.types import Snapshot

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[3] / "../shared"


def sizes(snapshot: Snapshot) -> Counter[tuple[str, int]]:
    return Counter((node.gpu_type, node.gpus) for node in snapshot.nodes)


# --- presets ---------------------------------------------------------------------------------------------------------
def test_the_clusters_of_the_sia_paper_are_as_published() -> None:
    assert sizes(preset("sia-heterogeneous")) == {("T4", 4): 6, ("RTX-2080-Ti", 8): 3, ("A100-SXM4-40GB", 8): 2}
    assert sizes(preset("sia-homogeneous")) == {("T4", 4): 16}
    assert sizes(preset("sia-physical")) == {
        ("RTX-2080-Ti", 8): 3, ("A100-SXM4-40GB", 8): 2, ("Quadro-RTX-6000", 4): 1,
    }  # fmt: skip


def test_the_cluster_of_adlro_has_eight_volta_four_turing_and_four_radeon() -> None:
    snapshot = preset("adlro")
    by_architecture: Counter[str] = Counter()
    for name, gpus in gpus_by_type(snapshot).items():
        by_architecture[snapshot.gpu_types[name].architecture] += gpus
    assert by_architecture == {"Volta": 8, "Turing": 4, "Vega20": 4}


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_an_empty_cluster_that_starts_at_zero(name: str) -> None:
    snapshot = cluster(name)
    assert (snapshot.time, snapshot.jobs) == (0, ())
    assert all(node.free_gpus == node.gpus > 0 for node in snapshot.nodes)
    assert len({node.name for node in snapshot.nodes}) == len(snapshot.nodes)
    assert set(snapshot.gpu_types) == {node.gpu_type for node in snapshot.nodes}
    assert int(Capacity(snapshot).free.sum()) == sum(gpus_by_type(snapshot).values())


def test_racks_and_blocks_are_in_the_topology() -> None:
    nodes = preset("h100-512").nodes
    assert len(nodes) == 64
    assert Counter(Counter(node.topology for node in nodes).values()) == {4: 16}
    assert Counter(Counter(node.topology[:2] for node in nodes).values()) == {32: 2}


def test_nodes_of_an_nvl72_rack_share_its_links() -> None:
    domains = Counter((node.link_domain, node.topology[-1]) for node in preset("gb200-576").nodes)
    assert list(domains.values()) == [18] * 8


# --- typed -----------------------------------------------------------------------------------------------------------
def test_a_typed_cluster_understands_the_names_of_traces() -> None:
    assert gpus_by_type(cluster("V100M32=16, P100=4x2 ,rtx=8")) == {"V100-SXM2-32GB": 16, "P100": 4, "RTX-2080-Ti": 8}


@pytest.mark.parametrize("text", ["", "T4", "T4=", "T4=0", "T4=8x0", "T4=-8", "T4=8,t4=8", "=8"])
def test_what_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ClusterError):
        typed(text)


def test_a_name_that_is_nothing_is_told_what_could_be_written() -> None:
    with pytest.raises(ClusterError, match=r"'sia': write adlro, .*sia-heterogeneous.*TYPE=COUNT.*CSV file"):
        cluster("sia")
    with pytest.raises(ClusterError, match="unknown cluster 'x', known are adlro"):
        preset("x")


# --- lists of nodes --------------------------------------------------------------------------------------------------
def test_a_list_of_nodes_gives_cpu_and_memory_and_leaves_out_nodes_without_gpus() -> None:
    nodes = cluster(str(DATA / "nodes_openb.csv")).nodes
    assert [(node.name, node.gpu_type, node.gpus) for node in nodes] == [
        ("node-0", "P100", 2), ("node-1", "G3", 8), ("node-3", "V100-SXM2-32GB", 8),
    ]  # fmt: skip
    assert (nodes[0].free_cpu_milli, nodes[0].free_memory) == (64_000, 256 << 30)


def test_the_list_of_the_spot_trace_is_read_too() -> None:
    snapshot = read_nodes(DATA / "nodes_spot.csv")
    assert gpus_by_type(snapshot) == {"A100-SXM4-80GB": 8, "H800-SXM5-80GB": 8, "A10": 1}
    assert snapshot.nodes[0].free_cpu_milli == 192_000


BAD_LISTS = {
    "sn,cpu_milli,memory_mib,gpu\n": "1: header: no list of nodes",
    "sn,cpu_milli,memory_mib,gpu,model\nn,1,1,2,H1000\n": "2: model: unknown GPU type 'H1000'",
    "sn,cpu_milli,memory_mib,gpu,model\nn,1,1,2,T4\nm,1,1,-2,T4\n": "3: gpu: '-2' is no whole number",
    "sn,cpu_milli,memory_mib,gpu,model\nn,1,1,2,T4\nn,1,1,2,T4\n": "3: name: n is there twice",
    "sn,cpu_milli,memory_mib,gpu,model\nn,1\n": "2: gpu: is missing",
    "sn,cpu_milli,memory_mib,gpu,model\nn,1,1,0,\n": "2: gpu: no node has a GPU",
    "sn,cpu_milli,memory_mib,gpu,model\n": "1: gpu: no node has a GPU",
    "": "1: header: no list of nodes",
}


@pytest.mark.parametrize("text", BAD_LISTS)
def test_a_bad_list_of_nodes_is_refused_with_row_and_field(tmp_path: Path, text: str) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text(text)
    with pytest.raises(FileError) as error:
        cluster(str(file))
    assert str(error.value).startswith(f"{file}:{BAD_LISTS[text]}")


@pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="no published traces beside the repository")
def test_published_lists_hold_what_their_readme_says() -> None:
    openb, spot = (read_nodes(SHARED / f"traces/nodes_{name}.csv") for name in ("openb2023", "spotgpu2026"))
    assert (len(openb.nodes), sum(gpus_by_type(openb).values())) == (1213, 6212)
    assert (len(spot.nodes), sum(gpus_by_type(spot).values())) == (4278, 10412)


# --- names of GPUs ---------------------------------------------------------------------------------------------------
def test_every_alias_leads_into_the_catalogue() -> None:
    assert all(gputypes.resolve(name).source.find("estimated") < 0 for name in gputypes.presets().aliases)


def test_stand_ins_keep_their_names_and_say_that_they_are_estimated() -> None:
    for name in gputypes.presets().stand_ins:
        found = gputypes.resolve(name.lower())
        assert found.name == name
        assert found.source.startswith("estimated")


def test_the_p100_stands_for_itself_as_its_datasheet_has_it() -> None:
    """NVIDIA Tesla P100 PCIe: 9.3 and 18.7 TFLOP/s, 732 GB/s."""
    p100 = gputypes.resolve("P100")
    assert {name.value: rate / 1e12 for name, rate in p100.peak_flops.items()} == pytest.approx(
        {"FP32": 9.3, "FP16": 18.7}, rel=0.01
    )
    assert p100.memory_bandwidth == pytest.approx(732e9, rel=0.01)
