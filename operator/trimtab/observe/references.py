"""What a pod template refers to in its namespace, and would not start without. Pure.

Kubelets wait for such objects with the pod on its node, and so with its GPUs held. References that say `optional:
true` are none, nor are pull secrets, without which kubelets pull what anybody may, nor what a pod brings along itself
(ephemeral volumes, projected tokens). Templates keep fields that are not declared, so anything may be anything here:
what has another form than a reference has is not one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

CLAIM, SECRET, CONFIG_MAP, ACCOUNT = "PersistentVolumeClaim", "Secret", "ConfigMap", "ServiceAccount"
MOST = 64
"""References of one job that are looked at: more than that no honest job has, and each costs a request."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_ROOT: Final = "spec.template.spec"


class Reference(Struct, frozen=True):
    """One object that has to be there."""

    kind: str
    name: str
    field: str
    """Path of the field that names it, from the root of the job."""

    @property
    def possible(self) -> bool:
        """Whether any object can have that name. Others are never asked for: they might lead elsewhere in a URL."""
        return _NAME.fullmatch(self.name) is not None and ".." not in self.name


def references_of(pod_spec: Mapping[str, Any]) -> tuple[Reference, ...]:
    """Every object once, with the first field that names it; `MOST` at most."""
    found: dict[tuple[str, str], Reference] = {}
    for kind, name, field in _all(pod_spec):
        if isinstance(name, str) and name and (kind, name) not in found:
            found[kind, name] = Reference(kind, name, f"{_ROOT}.{field}")
            if len(found) == MOST:
                break
    return tuple(found.values())


def _all(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Kind, name and field, as they come."""
    for field in ("serviceAccountName", "serviceAccount"):
        yield ACCOUNT, spec.get(field), field
    for at, volume in _each(spec, "volumes"):
        yield from _of_volume(volume, at)
    for containers in ("initContainers", "containers"):
        for at, container in _each(spec, containers):
            yield from _of_environment(container, at)


def _of_volume(volume: Mapping[str, Any], at: str) -> Iterator[tuple[str, Any, str]]:
    if claim := _table(volume, "persistentVolumeClaim"):
        yield CLAIM, claim.get("claimName"), f"{at}.persistentVolumeClaim.claimName"
    if secret := _needed(volume, "secret"):
        yield SECRET, secret.get("secretName"), f"{at}.secret.secretName"
    if config := _needed(volume, "configMap"):
        yield CONFIG_MAP, config.get("name"), f"{at}.configMap.name"
    for source, inside in _each(_table(volume, "projected"), "sources", f"{at}.projected"):
        for field, kind in (("secret", SECRET), ("configMap", CONFIG_MAP)):
            if named := _needed(inside, field):
                yield kind, named.get("name"), f"{source}.{field}.name"
    if published := _table(_table(volume, "csi"), "nodePublishSecretRef"):
        yield SECRET, published.get("name"), f"{at}.csi.nodePublishSecretRef.name"


def _of_environment(container: Mapping[str, Any], at: str) -> Iterator[tuple[str, Any, str]]:
    for entry, variable in _each(container, "env", at):
        for field, kind in (("secretKeyRef", SECRET), ("configMapKeyRef", CONFIG_MAP)):
            if key := _needed(_table(variable, "valueFrom"), field):
                yield kind, key.get("name"), f"{entry}.valueFrom.{field}.name"
    for entry, source in _each(container, "envFrom", at):
        for field, kind in (("secretRef", SECRET), ("configMapRef", CONFIG_MAP)):
            if named := _needed(source, field):
                yield kind, named.get("name"), f"{entry}.{field}.name"


def _table(of: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """The object in a field; an empty one where there is none."""
    found = of.get(field)
    return found if isinstance(found, Mapping) else {}


def _needed(of: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """The same, but for what need not be there."""
    found = _table(of, field)
    return {} if found.get("optional") is True else found


def _each(of: Mapping[str, Any], field: str, at: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Objects of a list, each with its path."""
    listed = of.get(field)
    for index, item in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(item, Mapping):
            yield f"{at}.{field}[{index}]" if at else f"{field}[{index}]", item
