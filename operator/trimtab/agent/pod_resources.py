"""Which pod has which GPU: the kubelet says so on its pod-resources socket (gRPC, `v1.PodResourcesLister/List`).

The client is h2 and a reader of the four messages: in an agent that has aiohttp loaded, importing grpcio costs
8.5 MiB of resident memory before its first call and starts threads of its own, h2 costs 1.3 MiB. An agent may have 60.

The kubelet is asked at most every 10 seconds, in a thread, so that one that hangs delays no reading. Without the
socket, or without an answer, nothing is known, which is not the same as that no pod has a GPU.

Protocol: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import structlog
from msgspec.structs import replace

from trimtab.agent.backend import Gpu, NodeReading
from trimtab.errors import TrimtabError

log = structlog.get_logger(__name__)

METHOD: Final = "/v1.PodResourcesLister/List"
DEADLINE_SECONDS: Final = 0.5
PERIOD_SECONDS: Final = 10.0
FORGET_SECONDS: Final = 60.0
"""An answer counts for so long when no newer one can be had."""
MOST_BYTES: Final = 16 << 20
"""As much as grpc-go sends at most by default, four times over."""

RESOURCES: Final = re.compile(r"(nvidia\.com/(gpu|mig-[\w.]+)(\.shared)?|amd\.com/gpu)")
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Assigned = Mapping[str, tuple[str, ...]]
"""Device ID (UUID of a GPU or of a MIG part, PCI address, number) -> pods `namespace/name`, sorted."""


class KubeletError(TrimtabError):
    """The kubelet did not say which pod has which device."""


class PodResources:
    """Asks the kubelet of this node now and then. Everything but `ask` returns at once."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.error = ""
        """Why the last question got no answer; empty after one that did."""
        self._clock = clock
        self._asking: threading.Thread | None = None
        self._asked_at: float | None = None
        self._answer: Assigned | None = None
        self._answered_at = 0.0

    def current(self) -> Assigned | None:
        """What the kubelet said last, None where that is not known. Has it asked again when that is due."""
        now = self._clock()
        due = self._asked_at is None or now - self._asked_at >= PERIOD_SECONDS
        if due and not (self._asking and self._asking.is_alive()):
            self._asked_at = now
            self._asking = threading.Thread(target=self.ask, name="pod-resources", daemon=True)
            self._asking.start()
        return self._answer if now - self._answered_at < FORGET_SECONDS else None

    def ask(self) -> Assigned | None:
        """Ask now, and wait for the answer for up to `DEADLINE_SECONDS`. None: there was none."""
        try:
            answer = list_devices(self.path)
        except KubeletError as problem:
            if not self.error:
                log.warning("it is not known which pod has which GPU", reason=str(problem))
            self.error = str(problem)
            return None
        if self.error:
            log.info("the kubelet says again which pod has which GPU")
        self._answer, self._answered_at, self.error = answer, self._clock(), ""
        return answer

    def close(self) -> None:
        """Wait for a question in flight, which takes no longer than its deadline."""
        if self._asking:
            self._asking.join(2 * DEADLINE_SECONDS)


def with_pods(reading: NodeReading, assigned: Assigned | None) -> NodeReading:
    """`reading` with the pods that have its GPUs; unchanged where the kubelet could not be asked."""
    if assigned is None:
        return reading
    return replace(reading, gpus=tuple(replace(gpu, pods=pods_of(gpu, assigned)) for gpu in reading.gpus))


def pods_of(gpu: Gpu, assigned: Assigned) -> tuple[str, ...]:
    """The pods that have `gpu` or a part of it, sorted."""
    names = {
        gpu.uuid,
        str(gpu.index),
        gpu.pci_bus.lower(),
        _short_address(gpu.pci_bus),
        *(part.uuid for part in gpu.mig),
    }
    names.discard("")
    return tuple(sorted({pod for name in names for pod in assigned.get(name, ())}))


def _short_address(address: str) -> str:
    """A PCI address with four digits of the domain, as sysfs and the device plugin of AMD write it."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""


def _device_names(device: str) -> Iterator[str]:
    """What a device plugin's ID can mean: time slices are `GPU-...::2`, MIG parts of old `MIG-GPU-.../1/0`."""
    plain = device.partition("::")[0]
    yield plain if plain.startswith(("GPU-", "MIG-")) else plain.lower()
    if plain.startswith("MIG-GPU-"):
        yield plain.removeprefix("MIG-").partition("/")[0]


# The call.


def list_devices(path: Path, deadline: float = DEADLINE_SECONDS) -> dict[str, tuple[str, ...]]:
    """All GPUs that pods of this node have. Raises KubeletError where the kubelet does not say so in time."""
    until = time.monotonic() + deadline
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(deadline)
            connection.connect(str(path))
            return assigned_devices(_call(connection, deadline, until))
    except TimeoutError as problem:
        raise KubeletError(f"The kubelet did not answer on {path} within {deadline} s.") from problem
    except OSError as problem:
        raise KubeletError(f"The kubelet cannot be asked on {path}: {problem}.") from problem
    except (h2.exceptions.H2Error, ValueError, struct.error) as problem:
        raise KubeletError(f"What answers on {path} does not speak as a kubelet does: {problem}.") from problem


def _call(connection: socket.socket, deadline: float, until: float) -> bytes:
    """One unary call with an empty request. Returns the message of the response."""
    wire = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    wire.initiate_connection()
    stream = wire.get_next_available_stream_id()
    headers = [(":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", "localhost")]
    headers += [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", f"{int(deadline * 1000)}m")]
    wire.send_headers(stream, headers)
    wire.send_data(stream, struct.pack(">BI", 0, 0), end_stream=True)
    body, status, ended = bytearray(), dict[str, str](), False
    while not ended:
        connection.sendall(wire.data_to_send())
        for event in _received(connection, wire, until):
            if isinstance(event, h2.events.DataReceived):
                body += event.data
                wire.acknowledge_received_data(event.flow_controlled_length, stream)
            elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                status |= {_plain(name): _plain(value) for name, value in event.headers}
            elif isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                raise ValueError("it broke off the call")
            ended = ended or isinstance(event, h2.events.StreamEnded)
        if len(body) > MOST_BYTES:
            raise ValueError(f"its answer is larger than {MOST_BYTES} bytes")
    return _message(body, status)


def _plain(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode()


def _received(connection: socket.socket, wire: h2.connection.H2Connection, until: float) -> list[h2.events.Event]:
    """What came in next. Raises TimeoutError when the time is up."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
    data = connection.recv(1 << 16)
    if not data:
        raise ValueError("it closed the connection")
    return wire.receive_data(data)


def _message(body: bytearray, status: Mapping[str, str]) -> bytes:
    """The one message of a response's body, where its trailers say that all went well."""
    if status.get("grpc-status") != "0":
        words = status.get("grpc-message", "") or status.get(":status", "")
        raise ValueError(f"gRPC status {status.get('grpc-status', 'missing')} {words}".rstrip())
    compressed, size = struct.unpack_from(">BI", body)
    if compressed or len(body) != size + 5:
        raise ValueError("its message is compressed or cut off")
    return bytes(body[5:])


# The messages. Only what is needed of them is read; fields that are not known are skipped, as protobuf demands.


def assigned_devices(message: bytes) -> dict[str, tuple[str, ...]]:
    """The GPUs in a ListPodResourcesResponse, and their pods. Raises ValueError where it is none."""
    pods: dict[str, set[str]] = defaultdict(set)
    for pod in _all(message, 1):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in _all(pod, 3):
            for devices in _all(container, 2):
                if RESOURCES.fullmatch(_text(devices, 1)):
                    for device in _all(devices, 2):
                        for each in _device_names(device.decode()):
                            pods[each].add(f"{namespace}/{name}")
    return {device: tuple(sorted(names)) for device, names in pods.items()}


def _text(message: bytes, number: int) -> str:
    return next(_all(message, number), b"").decode()


def _all(message: bytes, number: int) -> Iterator[bytes]:
    """The values of field `number`, which is a text, bytes or a message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == VARINT:
            _, at = _varint(message, at)
            continue
        size, at = _varint(message, at) if wire == BYTES else ({FIXED64: 8, FIXED32: 4}.get(wire, -1), at)
        if size < 0 or at + size > len(message):
            raise ValueError("a message of it is cut off or no protobuf")
        if wire == BYTES and key >> 3 == number:
            yield message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number in it does not end")
