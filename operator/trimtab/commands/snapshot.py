"""`trimtab snapshot`: dump what a policy would see, to look at it or decide on it offline."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trimtab.commands.live import look
from trimtab.commands.options import ContextOption, KubeconfigOption, OutputOption, command, kube_settings
from trimtab.errors import UsageError
from trimtab.ui import output, tables
from trimtab.ui.output import Output
from trimtab_policy.types import Snapshot


@command
async def snapshot(
    form: OutputOption = Output.JSON, kubeconfig: KubeconfigOption = None, context: ContextOption = None
) -> None:
    """Dump the cluster as policies see it; `trimtab plan --snapshot FILE` decides on it without a cluster.

    Example: trimtab snapshot -o json > now.json
    """
    observation = await look(kube_settings(kubeconfig, context))
    output.show(form, observation.snapshot, tables.nodes(observation))


def read(path: Path) -> Snapshot:
    """Read a dumped snapshot. Raises UsageError naming the file and the field that is wrong."""
    try:
        content = path.read_bytes()
        if path.suffix in (".yaml", ".yml"):
            return msgspec.yaml.decode(content, type=Snapshot)
        return msgspec.json.decode(content, type=Snapshot)
    except OSError as error:
        raise UsageError(f"cannot read snapshot {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is no snapshot (make one with `trimtab snapshot -o json`): {error}") from error
