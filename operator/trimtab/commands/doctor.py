"""`trimtab doctor`: what is wrong with an installation, and how it is mended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trimtab.commands.options import ContextOption, KubeconfigOption, OutputOption, command, kube_settings
from trimtab.printable import say
from trimtab.ui.form import Output

EXIT_WARNINGS, EXIT_ERRORS = 1, 2
PATIENCE_SECONDS = 30.0
"""Deadline of one request: a control plane that is asked about is often a slow one."""


@command
async def doctor(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the controller; default: as the settings say.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where there are warnings.")] = False,
    certificates: Annotated[
        bool, typer.Option("--certificates", help="Read the Secrets of the extender, too: when do they end?")
    ] = False,
    roles_for: Annotated[
        str,
        typer.Option(metavar="USER", help="Print roles with all rights that this command uses, for a user, and end."),
    ] = "",
    config: Annotated[Path | None, typer.Option(help="YAML settings file, that of the controller.")] = None,
    form: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Check an installation of Trimtab and say what to do about everything that is wrong.

    It looks at the API server and the CRDs, rights, the controller, clocks, GPU nodes, agents, the second
    kube-scheduler with its extender, queues, jobs and Kueue; it changes nothing. What it may not look at counts as not
    checked, and the missing right is told.

    Exit code: 0 where nothing is wrong, also with warnings; 1 for warnings with --strict; 2 for errors.

    Examples: trimtab doctor

    trimtab doctor --strict -o json | jq '.findings[] | select(.level != "ok")'

    trimtab doctor --roles-for alice | kubectl apply -f -
    """
    from trimtab import settings
    from trimtab.doctor import show
    from trimtab.doctor.collect import gather
    from trimtab.doctor.examine import examine, worst
    from trimtab.doctor.findings import Severity
    from trimtab.ui import output

    asked = settings.load(config)
    leadership = asked.leadership.model_copy(update={"namespace": namespace} if namespace else {})
    config_map = asked.policy.config_map.model_copy(update={"namespace": namespace} if namespace else {})
    kube = kube_settings(kubeconfig or asked.kube.kubeconfig, context or asked.kube.context)
    told = asked.model_copy(
        update={
            "kube": kube.model_copy(update={"request_timeout": PATIENCE_SECONDS}),
            "leadership": leadership,
            "policy": asked.policy.model_copy(update={"config_map": config_map}),
        }
    )
    if roles_for:
        _print_roles(leadership.namespace, roles_for)
        return
    seen = await gather(told, certificates=certificates)
    said = examine(seen)
    output.show(form, show.value(seen, said), show.table(said))
    level = worst(said)
    if level is Severity.ERROR:
        raise typer.Exit(EXIT_ERRORS)
    if level is Severity.WARNING and strict:
        raise typer.Exit(EXIT_WARNINGS)


def _print_roles(namespace: str, user: str) -> None:
    import yaml

    from trimtab.doctor import rbac

    say(yaml.safe_dump_all(rbac.roles_of_doctor(namespace, user), sort_keys=False).rstrip())
