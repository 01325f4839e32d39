"""Asking the kubelet which pod has which GPU: against gRPC's own server, and messages of protobuf's own encoder."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from trimtab.agent import pod_resources
from trimtab.agent.backend import Gpu, Mig, NodeReading
from trimtab.agent.pod_resources import KubeletError, PodResources, assigned_devices, list_devices, pods_of, with_pods

Answer = Callable[[bytes, Any], bytes]
UUID, OTHER = "GPU-8f2a6c10-0b7d-4e55-9c31-5d1e00000000", "GPU-8f2a6c10-0b7d-4e55-9c31-5d1e00000001"


def message_types() -> dict[str, Any]:
    """The kubelet's messages, all fields of them, as classes of protobuf's own."""
    number, text, message = (
        getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{t}") for t in ("INT64", "STRING", "MESSAGE")
    )
    one, many = (getattr(descriptor_pb2.FieldDescriptorProto, f"LABEL_{name}") for name in ("OPTIONAL", "REPEATED"))
    schema = [
        ("NUMANode", "ID", 1, number, one, None),
        ("NUMATopology", "nodes", 1, message, many, "NUMANode"),
        ("ContainerDevices", "resource_name", 1, text, one, None),
        ("ContainerDevices", "device_ids", 2, text, many, None),
        ("ContainerDevices", "topology", 3, message, one, "NUMATopology"),
        ("ContainerResources", "name", 1, text, one, None),
        ("ContainerResources", "devices", 2, message, many, "ContainerDevices"),
        ("ContainerResources", "cpu_ids", 3, number, many, None),
        ("PodResources", "name", 1, text, one, None),
        ("PodResources", "namespace", 2, text, one, None),
        ("PodResources", "containers", 3, message, many, "ContainerResources"),
        ("PodResources", "cpu_ids", 4, number, many, None),
        ("Response", "pod_resources", 1, message, many, "PodResources"),
    ]
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    messages = {name: file.message_type.add(name=name) for name in dict.fromkeys(row[0] for row in schema)}
    for name, field, position, kind, label, of in schema:
        type_name = f".v1.{of}" if of else None
        messages[name].field.add(name=field, number=position, type=kind, label=label, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in messages}


TYPES = message_types()


def response(*pods: tuple[str, str, str, list[str]]) -> bytes:
    """A ListPodResourcesResponse: (namespace, name, resource, devices) for each container."""
    listed = [
        TYPES["PodResources"](
            name=name,
            namespace=namespace,
            cpu_ids=[0, 1, 300],
            containers=[
                TYPES["ContainerResources"](
                    name="worker",
                    cpu_ids=[5, 1 << 40],
                    devices=[
                        TYPES["ContainerDevices"](
                            resource_name=resource,
                            device_ids=devices,
                            topology=TYPES["NUMATopology"](nodes=[TYPES["NUMANode"](ID=1)]),
                        )
                    ],
                )
            ],
        )
        for namespace, name, resource, devices in pods
    ]
    return bytes(TYPES["Response"](pod_resources=listed).SerializeToString())


@contextlib.contextmanager
def kubelet(path: Path, answer: Answer) -> Iterator[None]:
    """gRPC's own server on a socket, which answers as a kubelet would."""
    handlers = grpc.method_handlers_generic_handler(
        "v1.PodResourcesLister", {"List": grpc.unary_unary_rpc_method_handler(answer)}
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def impostor(path: Path, talk: Callable[[socket.socket], None]) -> Iterator[None]:
    """Something on a socket that is no kubelet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


def test_the_kubelet_says_which_pod_has_which_gpu(path: Path) -> None:
    answer = response(
        ("team-a", "train-0", "nvidia.com/gpu", [UUID]),
        ("team-a", "train-1", "nvidia.com/gpu", [OTHER]),
        ("team-b", "web", "example.com/fpga", ["fpga-0"]),
    )
    with kubelet(path, lambda _request, _context: answer):
        assert list_devices(path) == {UUID: ("team-a/train-0",), OTHER: ("team-a/train-1",)}


def test_an_answer_larger_than_a_window_of_http2_arrives_whole(path: Path) -> None:
    pods = [("team", f"pod-{i}-{'x' * 200}", "nvidia.com/gpu", [f"GPU-{i}"]) for i in range(2000)]
    with kubelet(path, lambda _request, _context: response(*pods)):
        assert len(list_devices(path, deadline=30)) == 2000


def test_no_pods_is_an_answer(path: Path) -> None:
    with kubelet(path, lambda _request, _context: b""):
        assert list_devices(path) == {}


def test_a_shared_gpu_has_all_its_pods(path: Path) -> None:
    listed = assigned_devices(
        response(
            ("a", "one", "nvidia.com/gpu.shared", [f"{UUID}::0"]),
            ("a", "two", "nvidia.com/gpu.shared", [f"{UUID}::3"]),
        )
    )
    assert pods_of(Gpu(uuid=UUID, index=0), listed) == ("a/one", "a/two")


def test_parts_of_a_gpu_count_for_the_gpu() -> None:
    listed = assigned_devices(
        response(
            ("a", "new", "nvidia.com/mig-1g.10gb", ["MIG-6d1b5a0e-2f0c-5a79-8f01-00000000000a"]),
            ("a", "old", "nvidia.com/mig-3g.40gb", [f"MIG-{UUID}/1/0"]),
        )
    )
    parts = (Mig(uuid="MIG-6d1b5a0e-2f0c-5a79-8f01-00000000000a", profile="1g.10gb"),)
    assert pods_of(Gpu(uuid=UUID, index=0, mig=parts), listed) == ("a/new", "a/old")
    assert pods_of(Gpu(uuid=OTHER, index=1), listed) == ()


@pytest.mark.parametrize("device", ["0000:1b:00.0", "3"])
def test_devices_are_known_by_address_and_number_too(device: str) -> None:
    listed = assigned_devices(response(("a", "one", "amd.com/gpu", [device])))
    assert pods_of(Gpu(uuid="0x1b2c", index=3, pci_bus="00000000:1B:00.0"), listed) == ("a/one",)


def test_readings_carry_the_pods_only_where_they_are_known() -> None:
    reading = NodeReading(gpus=(Gpu(uuid=UUID, index=0), Gpu(uuid=OTHER, index=1)))
    assert [gpu.pods for gpu in with_pods(reading, {UUID: ("a/one",)}).gpus] == [("a/one",), ()]
    assert [gpu.pods for gpu in with_pods(reading, None).gpus] == [None, None]


def test_without_the_socket_nothing_is_known(path: Path) -> None:
    resources = PodResources(path)
    assert resources.ask() is None
    assert "cannot be asked" in resources.error


def test_the_log_says_once_that_the_kubelet_does_not_answer_and_once_that_it_does(path: Path) -> None:
    resources = PodResources(path)
    with capture_logs() as logged:
        resources.ask()
        resources.ask()
        with kubelet(path, lambda _request, _context: b""):
            resources.ask()
            resources.ask()
    assert [entry["log_level"] for entry in logged] == ["warning", "info"]
    assert "cannot be asked" in logged[0]["reason"]


def test_a_kubelet_that_hangs_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_resources, "DEADLINE_SECONDS", 0.1)
    release = threading.Event()

    def hang(_request: bytes, _context: object) -> bytes:
        release.wait(30)
        return b""

    with kubelet(path, hang):
        with pytest.raises(KubeletError, match=r"did not answer|DEADLINE|status 4|broke off"):
            list_devices(path, deadline=0.1)
        release.set()


def test_a_socket_that_accepts_and_says_nothing_is_given_up(path: Path) -> None:
    gone = threading.Event()
    with impostor(path, lambda _connection: gone.wait(30) and None):
        with pytest.raises(KubeletError, match="did not answer"):
            list_devices(path, deadline=0.1)
        gone.set()


def test_a_kubelet_that_refuses_is_quoted(path: Path) -> None:
    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return b""

    with kubelet(path, refuse), pytest.raises(KubeletError, match="gRPC status 8 rejected by rate limit"):
        list_devices(path)


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 100, b"", b"\xff" * 5000])
def test_garbage_is_no_answer(path: Path, words: bytes) -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(words)

    with impostor(path, talk), pytest.raises(KubeletError):
        list_devices(path, deadline=1)


def test_a_message_that_is_no_protobuf_is_no_answer(path: Path) -> None:
    with (
        kubelet(path, lambda _request, _context: b"\x0a\x7f\x01"),
        pytest.raises(KubeletError, match="protobuf"),
    ):
        list_devices(path)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    with contextlib.suppress(ValueError):
        assigned_devices(message)


def test_asking_blocks_nobody_and_comes_at_most_every_ten_seconds(path: Path) -> None:
    asked: list[int] = []
    now = 100.0

    def answer(_request: bytes, _context: object) -> bytes:
        asked.append(1)
        return response(("a", "one", "nvidia.com/gpu", [UUID]))

    resources = PodResources(path, clock=lambda: now)
    with kubelet(path, answer):
        assert resources.current() is None
        resources.close()
        for later in (0.0, 1.0, 9.9):
            now = 100.0 + later
            assert resources.current() == {UUID: ("a/one",)}
        now = 110.0
        resources.current()
        resources.close()
    assert len(asked) == 2


def test_an_old_answer_is_forgotten(path: Path) -> None:
    now = 0.0
    resources = PodResources(path, clock=lambda: now)
    with kubelet(path, lambda _request, _context: response(("a", "one", "nvidia.com/gpu", [UUID]))):
        resources.ask()
    now = 59.0
    assert resources.current() == {UUID: ("a/one",)}
    resources.close()
    now = 61.0
    assert resources.current() is None
    resources.close()
