"""A cluster with a second kube-scheduler that asks an extender, PodGroups switched on, and volumes that are bound."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.live.accounts import clear
from tests.live.extender.front import Front
from tests.live.extender.process import ExtenderProcess
from tests.live.extender.stand_in import Answer, StandIn
from tests.live.harness import ControllerProcess, Live, gpu_node, wait_until

from trimtab.extender.config import FEATURE_GATES, ExtenderTls, scheduler_configuration
from trimtab_local.checkout import checkout
from trimtab_local.control_plane.build import build
from trimtab_local.control_plane.cluster import LocalCluster
from trimtab_local.control_plane.components import SECOND_SCHEDULER
from trimtab_local.control_plane.kubeconfig import service_account_kubeconfig
from trimtab_local.control_plane.layout import ClusterPhase, Layout
from trimtab_local.control_plane.options import ClusterOptions, SecondScheduler

DEEP = [f"deep-{index}" for index in range(4)]
"""Eight GPUs each."""
WIDE = [f"wide-{index}" for index in range(112)]
"""One GPU each, and more of them than kube-scheduler looks at by default."""
EXTENDER: dict[str, dict[str, Any]] = {"binding": {"mode": "Extender", "timeout_seconds": 5}}
"""Settings of a controller that leaves the binding to kube-scheduler, and does not wait for long."""


@pytest.fixture(scope="session")
def front() -> Iterator[Front]:
    """The address at which kube-scheduler looks for the extender."""
    front = Front()
    yield front
    front.close()


@pytest.fixture(scope="session")
def live_cluster(state_home: Path, front: Front) -> Iterator[Live]:
    """A second cluster for the session: PodGroups, volumes, and a kube-scheduler that asks `front`."""
    build()
    name = f"tests-extender-{os.getpid()}"
    files = Layout(name).extender_files
    tls = ExtenderTls(str(files.ca), str(files.client_certificate), str(files.client_key))
    configuration = scheduler_configuration(f"https://127.0.0.1:{front.port}", tls=tls)
    options = ClusterOptions(
        feature_gates={"GenericWorkload": True, "GangScheduling": True, "DRADeviceTaintRules": True},
        apis=("scheduling.k8s.io/v1alpha2", "resource.k8s.io/v1beta2"),
        controllers=("podgroup-protection-controller", "persistentvolume-binder-controller"),
        second_scheduler=SecondScheduler(configuration, dict(FEATURE_GATES)),
        restarted=(SECOND_SCHEDULER,),
    )
    with LocalCluster(name, options=options) as cluster:
        live = Live(cluster)
        manifests = checkout() / "manifests"
        cluster.kubectl("apply", "--server-side", "-f", str(manifests / "crds"), "-f", str(manifests / "rbac.yaml"))
        cluster.kubectl("wait", "--for=condition=Established", "-f", str(manifests / "crds"), "--timeout=30s")
        nodes = [gpu_node(name, pool="deep") for name in DEEP] + [gpu_node(name, gpus=1, pool="wide") for name in WIDE]
        cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
        cluster.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
        yield live


@pytest.fixture(autouse=True)
def clean(live_cluster: Live) -> Iterator[None]:
    """No job of a test that failed is in the way of the next one."""
    yield
    if live_cluster.list("ltj"):
        clear(live_cluster)


@pytest.fixture
def fresh_scheduler(live_cluster: Live) -> None:
    """kube-scheduler without the GPUs that it may take for taken since a gang was rolled back in an earlier test
    (`trimtab.apply.unscheduled`): for gangs that are to be bound at the first attempt."""
    cluster = live_cluster.cluster
    pid = cluster.status().components[SECOND_SCHEDULER]
    os.kill(pid, signal.SIGKILL)

    def anew() -> bool:
        state = cluster.status()
        return state.phase == ClusterPhase.READY and state.components[SECOND_SCHEDULER] != pid

    wait_until(anew, "another kube-scheduler")


NewExtender = Callable[[], ExtenderProcess]


@pytest.fixture(scope="session")
def new_extender(live_cluster: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewExtender]:
    """Extenders that run as their own service account, with the rights of its manifest."""
    directory, cluster = tmp_path_factory.mktemp("extender"), live_cluster.cluster
    documents = yaml.safe_load_all((checkout() / "manifests" / "extender.yaml").read_text())
    rights = [each for each in documents if each["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")]
    live_cluster.apply(*rights)
    kubeconfig = directory / "extender.kubeconfig"
    service_account_kubeconfig(cluster.kubeconfig, "trimtab-system", "trimtab-extender", kubeconfig)
    made: list[ExtenderProcess] = []

    def make() -> ExtenderProcess:
        made.append(ExtenderProcess(kubeconfig, cluster.extender_files, directory))
        return made[-1]

    yield make
    for process in made:
        process.stop()


@pytest.fixture(scope="session")
def extender_of_session(new_extender: NewExtender) -> ExtenderProcess:
    return new_extender()


@pytest.fixture
def extender(extender_of_session: ExtenderProcess, front: Front) -> ExtenderProcess:
    """The extender, and kube-scheduler finds it."""
    front.delay = 0.0
    front.to(extender_of_session.port)
    return extender_of_session


@pytest.fixture
def stand_in(live_cluster: Live, front: Front) -> Iterator[Callable[[Answer], StandIn]]:
    """Put something else in the extender's place."""
    made: list[StandIn] = []

    def make(answer: Answer) -> StandIn:
        made.append(StandIn(live_cluster.cluster.extender_files, answer))
        front.delay = 0.0
        front.to(made[-1].port)
        return made[-1]

    yield make
    front.down()
    for each in made:
        each.close()


@pytest.fixture
async def controller(live: Live, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    """A controller that leaves the binding to kube-scheduler."""
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, **EXTENDER) as process:
        yield process
        assert process.alive, process.tail()


@pytest.fixture
async def patient_controller(live: Live, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    """The same with the usual time-out, for gangs that are to be bound at the first attempt on any machine."""
    async with ControllerProcess(live.kubeconfig(tmp_path), tmp_path, binding={"mode": "Extender"}) as process:
        yield process
        assert process.alive, process.tail()
