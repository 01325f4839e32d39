"""`trimtab get jobs|nodes|queues`: what runs where, and for whom, with the habits of `kubectl get`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from trimtab.commands import completion
from trimtab.commands.options import (
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    command,
    kube_settings,
    own_namespace,
    place,
)
from trimtab.errors import TrimtabError, UsageError
from trimtab.ui.form import LIST_FORMS, ListForm, list_form

if TYPE_CHECKING:
    from trimtab.observe.jobs import JobFacts
    from trimtab.observe.snapshot import Observation
    from trimtab.settings import KubeSettings, PriceSettings
    from trimtab.ui.listing import Rows

ALIASES = {
    "job": "jobs", "ltj": "jobs", "ltjs": "jobs", "llmtrainingjob": "jobs", "llmtrainingjobs": "jobs",
    "node": "nodes", "no": "nodes", "gpunode": "nodes", "gpunodes": "nodes", "gpun": "nodes",
    "queue": "queues", "ltq": "queues", "q": "queues",
}  # fmt: skip
"""Names by which people and kubectl know the kinds as well: singular, short, in full."""


JOB, NODE, QUEUE = "llmtrainingjob.trimtab.dev", "node", "queue.trimtab.dev"
"""As `-o name` has them."""


class Kinds(TyperGroup):
    """The kinds, each by every name that it has; KIND/NAME is KIND NAME, as `-o name` prints it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take `ltj/llama3-8b`, also with the API group behind the kind, apart."""
        kind, slash, name = args[0].partition("/")
        words = [kind.partition(".")[0], name] if slash else [kind]
        return super().resolve_command(ctx, [*words, *args[1:]])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a kind by any of its names."""
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))


app = typer.Typer(
    cls=Kinds, no_args_is_help=True, help="Show jobs, nodes or queues. Singular and short names do, too: job, ltj, ltq."
)


def _form(text: str) -> ListForm:
    try:
        return list_form(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _forms(incomplete: str) -> list[str]:
    return [form.removesuffix("TEMPLATE") for form in LIST_FORMS if form.startswith(incomplete)]


ListOption = Annotated[
    Any,
    typer.Option(
        "--output", "-o", parser=_form, metavar="FORM", autocompletion=_forms, help=f"One of {', '.join(LIST_FORMS)}."
    ),
]
HeadersOption = Annotated[bool, typer.Option("--no-headers", help="Leave out the line of column names.")]
WatchOption = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Then go on: print a row whenever it changes, until Ctrl-C."),
]
SelectorOption = Annotated[str, typer.Option("--selector", "-l", help="Labels, e.g. team=nlp,tier!=dev.")]


@app.command()
@command
async def jobs(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="NAME or NAMESPACE/NAME.", autocompletion=completion.jobs),
    ] = None,
    namespace: NamespaceOption = "",
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")] = False,
    selector: SelectorOption = "",
    watch: WatchOption = False,
    form: ListOption = "table",
    no_headers: HeadersOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show training jobs with their plans, progress and state; with -o wide also queue, priority, and who decided.

    Examples: trimtab get jobs -A

    trimtab get job llama3-8b -n team-a -o json

    trimtab get jobs -A --watch

    trimtab get jobs -l team=nlp -o jsonpath='{.items[*].name}'
    """
    if everywhere and (names or namespace):
        raise UsageError("--all-namespaces goes neither with names nor with --namespace")
    from trimtab.commands.job_list import jobs_of

    wanted = [place(name, namespace, kubeconfig, context) for name in names or ()]
    where = "" if everywhere else namespace or own_namespace(kubeconfig, context)
    kube = kube_settings(kubeconfig, context)
    rows = await jobs_of(kube, where, selector, wanted)
    several = everywhere or len({space for space, _ in wanted}) > 1
    more = ["AGE", *(["NAMESPACE"] if several else []), *(["QUEUE", "PRIORITY", "POLICY"] if form.wide else [])]
    made = partial(_job_rows, more=more, headers=not no_headers)
    if not rows:
        _nothing("jobs", f" in namespace {where}" if where else "")
    if not watch:
        _show(form, JOB, made(rows), len(names or ()) == 1)
        return
    from trimtab.commands import following

    printer = following.Printer(form, JOB)
    printer.update(made(rows))
    await following.jobs(kube, {space for space, _ in wanted} or {where}, selector, wanted, made, printer)


@app.command()
@command
async def nodes(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NODE]...")] = None,
    selector: SelectorOption = "",
    watch: WatchOption = False,
    form: ListOption = "table",
    no_headers: HeadersOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show GPU nodes as Trimtab understands them: type, free GPUs, topology, and why a node takes no pods.

    With `-o json` also what its agent reads, in shares from 0 to 1 and degrees Celsius.
    """
    from trimtab.commands.live import labelled_nodes, look

    kube = kube_settings(kubeconfig, context)
    observation = await look(kube)
    _check("node", names, observation.nodes)

    async def made(seen: Observation) -> Rows:
        only = [name for name in names or seen.nodes if name in seen.nodes]
        if selector:
            only = [name for name in await labelled_nodes(kube, selector) if name in only]
        return _node_rows(seen, only, headers=not no_headers)

    rows = await made(observation)
    if not rows.keys:
        _nothing("GPU nodes")
    if watch:
        await _follow(kube, form, NODE, rows, made)
    else:
        _show(form, NODE, rows, len(names or ()) == 1)


@app.command()
@command
async def queues(
    names: Annotated[list[str] | None, typer.Argument(metavar="[QUEUE]...", autocompletion=completion.queues)] = None,
    watch: WatchOption = False,
    form: ListOption = "table",
    no_headers: HeadersOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show queues: what each is guaranteed, may have and has by GPU type, its share of the cluster, and who is next.

    With -o wide also the GPU-hours that jobs which exist have used, and their cost by `prices` of the settings.
    Borrowed are GPUs beyond the guarantee. Of two queues the one with the smaller share is served first.
    """
    from trimtab import settings
    from trimtab.commands.live import look

    prices, kube = settings.load().prices, kube_settings(kubeconfig, context)
    observation = await look(kube)
    _check("queue", names, observation.queues)

    async def made(seen: Observation) -> Rows:
        return _queue_rows(seen, names or seen.queues, prices, headers=not no_headers, wide=form.wide)

    rows = await made(observation)
    if not rows.keys:
        _nothing("queues")
    if watch:
        await _follow(kube, form, QUEUE, rows, made)
    else:
        _show(form, QUEUE, rows, len(names or ()) == 1)


async def _follow(
    kube: KubeSettings, form: ListForm, kind: str, rows: Rows, made: Callable[[Observation], Awaitable[Rows]]
) -> None:
    """Print these rows, and then what `made` makes of the cluster whenever that has become another."""
    from trimtab.commands import following

    printer = following.Printer(form, kind)
    printer.update(rows)
    await following.looks(kube, made, printer)


def _check(kind: str, names: Collection[str] | None, known: Iterable[str]) -> None:
    """Raises TrimtabError for a name that there is not."""
    from trimtab_policy.inputs.nearest import did_you_mean

    known = list(known)
    for name in names or ():
        if name not in known:
            raise TrimtabError(f"there is no {kind} {name}{did_you_mean(name, known)}")


def _show(form: ListForm, kind: str, rows: Rows, one: bool) -> None:
    """Print all; nothing in a table of nothing."""
    from trimtab.ui import output

    if rows.keys or form.path is not None or form.output.value != "table":
        output.show_list(form, kind, rows.names, rows.values, rows.table, one)


def _nothing(what: str, where: str = "") -> None:
    """For people, as kubectl says it: programs read the standard output."""
    from trimtab.printable import say

    say(f"no {what} found{where}", error=True)


def _job_rows(found: Collection[JobFacts], more: Collection[str], *, headers: bool) -> Rows:
    import time

    from trimtab.ui import tables, words
    from trimtab.ui.listing import Rows

    now = time.time()
    table = tables.jobs(found, lambda facts: words.progress(facts, now), more=more, now=now, headers=headers)
    metas = [facts.meta for facts in found]
    return Rows([meta.key for meta in metas], [meta.name for meta in metas], job_values(found), table)


def _node_rows(observation: Observation, only: Collection[str], *, headers: bool) -> Rows:
    from trimtab.ui import tables
    from trimtab.ui.listing import Rows

    values = node_values(observation, only)
    names = [value["name"] for value in values]
    return Rows(names, names, values, tables.nodes(observation, only, headers=headers))


def _queue_rows(
    observation: Observation, only: Collection[str], prices: PriceSettings, *, headers: bool, wide: bool = False
) -> Rows:
    import msgspec

    from trimtab.ui import queues as lines
    from trimtab.ui.listing import Rows

    found = [each for each in lines.rows(observation, prices) if each.name in only]
    names = [each.name for each in found]
    heights = [max(1, len(each.quotas)) for each in found]
    table = lines.table(found, headers=headers, currency=prices.currency if wide else None)
    return Rows(names, names, msgspec.to_builtins(found), table, heights)


def job_values(rows: Iterable[JobFacts]) -> list[dict[str, Any]]:
    """Jobs as `-o json` shows them."""
    from trimtab.ui import words

    return [
        {
            "namespace": facts.meta.namespace,
            "name": facts.meta.name,
            "labels": facts.meta.labels,
            "state": words.state(facts),
            "status": facts.status.to_wire(),
        }
        for facts in rows
    ]


def node_values(observation: Observation, only: Collection[str]) -> list[dict[str, Any]]:
    """GPU nodes as `-o json` shows them, by name; of these names."""
    snapshot = observation.snapshot
    taking = {node.name: node for node in snapshot.nodes}
    return [
        {
            "name": facts.name,
            "gpuType": facts.gpu.name if facts.gpu else None,
            "gpus": facts.gpus,
            "freeGpus": taking[facts.name].free_gpus if facts.name in taking else None,
            "foreignGpus": observation.reports.foreign.get(facts.name, 0),
            "topology": facts.topology,
            "unavailable": snapshot.unavailable.get(facts.name),
            "readings": _readings(observation, facts.name),
            "problems": [
                {"reason": problem.reason, "message": problem.message}
                for problem in observation.problems_of(facts.name)
            ],
        }
        for facts in sorted(observation.nodes.values(), key=lambda facts: facts.name)
        if facts.name in only
    ]


def _readings(observation: Observation, node: str) -> dict[str, float | str] | None:
    """What the agent says and when it was so by the node's clock; when it arrived here says nothing to an onlooker."""
    import msgspec

    readings, told = observation.reports.readings.get(node), observation.reports.telemetry.get(node)
    if readings is None or told is None:
        return None
    known = {name: value for name, value in msgspec.to_builtins(readings).items() if name != "arrived"}
    return {**known, "observedTime": told.observed}
