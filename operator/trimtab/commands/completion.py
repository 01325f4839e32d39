"""What Tab offers: names that are cheap to know. Who may not ask is offered nothing, and told nothing.

The API server is asked without the client of all else, which takes longer to load than the answer takes to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

PATIENCE_SECONDS = 1.0
MOST = 500
"""Names that are asked for: nobody reads more."""


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Jobs of the namespace that is meant, or NAMESPACE/NAME once a slash is written."""
    from trimtab.kube.resources import JOBS
    from trimtab.kube.slim_auth import namespace

    kubeconfig, context = _where(ctx.params)
    written, slash, _ = incomplete.rpartition("/")
    space = written or ctx.params.get("namespace") or namespace(kubeconfig, context)
    found = _names(JOBS.path(space), kubeconfig, context)
    return _beginning((f"{written}{slash}{name}" for name in found), incomplete)


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Queues of the cluster."""
    from trimtab.kube.resources import QUEUES

    return _beginning(_names(QUEUES.path(), *_where(ctx.params)), incomplete)


def policies(incomplete: str) -> list[str]:
    """Registered policies; none of them is imported."""
    from trimtab_policy import policy

    return _beginning(policy.names(), incomplete)


def models(incomplete: str) -> list[str]:
    """Presets of the catalogue."""
    from trimtab_policy import catalog

    return _beginning(catalog.model_names(), incomplete)


def gpu_types(incomplete: str) -> list[str]:
    """GPU types of the catalogue; behind the last comma, as `--gpus` has them."""
    from trimtab_policy import catalog

    done, comma, begun = incomplete.rpartition(",")
    return _beginning((f"{done}{comma}{gpu.name}" for gpu in catalog.all_gpus()), f"{done}{comma}{begun}")


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.casefold().startswith(incomplete.casefold()))


def _where(params: Mapping[str, Any]) -> tuple[Path | None, str | None]:
    return params.get("kubeconfig"), params.get("context")


def _names(path: str, kubeconfig: Path | None, context: str | None) -> list[str]:
    """Names of the objects of a kind."""
    import json
    import urllib.request

    from trimtab.errors import SettingsError
    from trimtab.kube import slim_auth

    try:
        access = slim_auth.plain(kubeconfig, context)
        if access is None:
            return []
        headers = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
        if access.authorization:
            headers["Authorization"] = access.authorization
        asked = urllib.request.Request(f"{access.server}{path}?limit={MOST}", headers=headers)  # noqa: S310 - of the kubeconfig
        tls = access.ssl_context() if access.server.startswith("https:") else None
        with urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS, context=tls) as answer:  # noqa: S310 - the same
            return [each["metadata"]["name"] for each in json.load(answer)["items"]]
    except (SettingsError, OSError, ValueError, LookupError, TypeError):
        return []  # a Tab in the middle of a line is no place for errors: the command itself will tell
