"""Renders of the chart, as objects, once per set of values."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hack.chart.render import CHART, render, value_files

Object = dict[str, Any]
MANIFESTS = CHART.parents[1] / "manifests"
FILES = value_files()
EVERYTHING = """
binding: {mode: Extender}
extender: {enabled: true, tls: {mode: CertManager}}
scheduler: {enabled: true}
web: {enabled: true, tls: {secretName: my-web-tls}, ingress: {enabled: true, host: trimtab.example.com}}
fakeNodes: {enabled: true}
serviceMonitor: {enabled: true}
prometheusRule: {enabled: true}
grafanaDashboard: {enabled: true}
settings: {queues: {reservations: 2}}
"""
"""All components at once."""
LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The CRDs are long: the loader in C takes a tenth of the time."""


@cache
def text_of(name: str, *arguments: str) -> str:
    """What a set of values of the chart renders to, as text."""
    return render("--values", str(FILES[name]), *arguments)


@cache
def objects_of(name: str) -> list[Object]:
    """What a set of values of the chart renders to."""
    return parse(text_of(name))


@cache
def objects(values: str = "", namespace: str = "trimtab-system") -> list[Object]:
    """What values, as YAML, render to."""
    return parse(render(values=values, namespace=namespace))


def parse(text: str) -> list[Object]:
    """Objects of a stream of YAML documents, without the empty ones."""
    return [each for each in yaml.load_all(text, Loader=LOADER) if each]


def manifest(name: str) -> list[Object]:
    """Objects of a file of manifests/."""
    return parse((MANIFESTS / name).read_text())


def the(kind: str, name: str, among: list[Object]) -> Object:
    """The one object of this kind and name."""
    (found,) = (each for each in among if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def called(among: list[Object]) -> set[tuple[str, str]]:
    """Kinds and names."""
    return {(each["kind"], each["metadata"]["name"]) for each in among}


def pod_of(workload: Object) -> Object:
    """The pod of a Deployment, DaemonSet or Job, or a Pod itself."""
    spec = workload["spec"]
    return dict(spec["template"]["spec"] if "template" in spec else spec)


def workloads(among: list[Object]) -> list[Object]:
    """What makes pods."""
    return [each for each in among if each["kind"] in ("Deployment", "DaemonSet", "Job", "Pod")]


def container_of(workload: Object) -> Object:
    """Its only container."""
    (container,) = pod_of(workload)["containers"]
    return dict(container)


def environment_of(workload: Object) -> dict[str, str]:
    """Variables with a value."""
    return {each["name"]: each["value"] for each in container_of(workload).get("env", []) if "value" in each}


def chart_file(name: str) -> Path:
    """A file of the chart."""
    return CHART / name
