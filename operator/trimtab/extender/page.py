"""/inspect: what is planned where, for people (HTML) and programs (`?format=json`). It only reads.

Nodes that pods of gangs are planned for or bound to come first, then the others by name, `?limit=` of them (200, at
most 1,000). `?gang=namespace/job` shows one gang. Names come from whoever makes pods: everything is escaped, and the
page may load and run nothing.

kube-scheduler is asking the same process meanwhile: a page is made in slices of a millisecond, between which requests
are answered. What is shown of one node may therefore be some milliseconds older than what is shown of another. A thread
would hold the interpreter for longer at a time (5 ms).
"""

from __future__ import annotations

import asyncio
import html
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import web
from msgspec import Struct

from trimtab.extender.pod_index import BooksWatch, GangMember, PodIndex
from trimtab.printable import printable

LIMIT, MOST = 200, 1000
SLICE_SECONDS = 0.001
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; } th, td { padding: .2em 1em .2em 0; text-align: left; vertical-align: top; }
th { border-bottom: 1px solid #999; } td { border-bottom: 1px solid #eee; }
td.number, th.number { text-align: right; } .bad { color: #a00; } .dim { color: #777; }
"""


From = TypeVar("From")
To = TypeVar("To")


class NodeRow(Struct, rename="camel"):
    """A node and what is on it."""

    name: str
    gpu_type: str
    gpus: int
    held: int
    """GPUs of bound pods, whoever they are."""
    promised: int
    """GPUs of pods that are planned for it and not bound yet."""
    unavailable: str
    pods: list[str]
    """`namespace/name state` of pods of gangs."""


class GangRow(Struct, rename="camel"):
    """A gang: the pods of one job and epoch."""

    name: str
    epoch: str
    size: int
    """Pods that it should have; 0 where they do not say."""
    states: dict[str, int]
    members: list[GangMember]


class PageView(Struct, rename="camel"):
    """What the page shows."""

    trouble: str
    nodes: list[NodeRow]
    nodes_left_out: int
    gangs: list[GangRow]
    gangs_left_out: int


async def inspect(request: web.BaseRequest, watch: BooksWatch) -> web.Response:
    """The page, as the request wants it."""
    wanted = request.query.get("limit", "")
    limit = min(int(wanted), MOST) if wanted.isascii() and wanted.isdigit() and len(wanted) < 7 else LIMIT
    shown = await view(watch.index, watch.trouble, limit, request.query.get("gang", ""))
    if request.query.get("format") == "json":
        return web.Response(body=await encode(shown), content_type="application/json", headers=HEADERS)
    return web.Response(text=await render(shown), content_type="text/html", charset="utf-8", headers=HEADERS)


async def view(index: PodIndex, trouble: str, limit: int, gang: str = "") -> PageView:
    """What there is to see; of one `gang` (`namespace/job`) only, where one is given."""
    on_node: Mapping[str, Mapping[str, GangMember]] = index.on_node
    names, gangs = index.gangs, [*index.gangs]
    if gang:
        gangs = [gang] if gang in names else []
        on_node = _by_place(names.get(gang, {}))
    planned = [name for name in on_node if name in index.nodes]
    others = [] if gang else [name for name, node in index.nodes.items() if node.gpus and name not in on_node]
    nodes = await _first(planned, limit)
    nodes += await _first(others, limit - len(nodes))
    rows = await _paced(nodes, lambda name: _node(index, name, on_node.get(name, {})))
    found = await _paced(await _first(gangs, limit), lambda name: _gangs(name, names.get(name, {})))
    return PageView(
        trouble=trouble,
        nodes=[row for row in rows if row],
        nodes_left_out=max(len(planned) + len(others) - limit, 0),
        gangs=[row for several in found for row in several],
        gangs_left_out=max(len(gangs) - limit, 0),
    )


async def encode(shown: PageView) -> bytes:
    """The page for programs."""
    return msgspec.json.encode(
        {
            "trouble": shown.trouble,
            "nodes": await _paced(shown.nodes, _raw),
            "nodesLeftOut": shown.nodes_left_out,
            "gangs": await _paced(shown.gangs, _raw),
            "gangsLeftOut": shown.gangs_left_out,
        }
    )


def _by_place(members: Mapping[str, GangMember]) -> dict[str, dict[str, GangMember]]:
    found: dict[str, dict[str, GangMember]] = {}
    for uid, member in members.items():
        found.setdefault(member.place, {})[uid] = member
    return found


def _node(index: PodIndex, name: str, members: Mapping[str, GangMember]) -> NodeRow | None:
    if (entry := index.nodes.get(name)) is None:  # gone since the list of names was made
        return None
    pods = sorted(f"{m.namespace}/{m.pod} {m.state}" for m in members.values())
    promised = sum(m.gpus for m in members.values() if not m.bound)
    return NodeRow(name, entry.gpu_type, entry.gpus, index.held(name), promised, entry.unavailable, pods)


def _gangs(name: str, members: Mapping[str, GangMember]) -> list[GangRow]:
    """The gangs of one job: one, or two while an old one ends."""
    found: dict[str, list[GangMember]] = {}
    for member in members.values():
        found.setdefault(member.epoch, []).append(member)
    return [
        GangRow(
            name=name,
            epoch=epoch,
            size=max(m.gang for m in pods),
            states=dict(sorted(Counter(m.state for m in pods).items())),
            members=sorted(pods, key=lambda m: (len(m.rank), m.rank, m.pod)),
        )
        for epoch, pods in sorted(found.items())
    ]


def _raw(row: Struct) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(row))


# --- in slices --------------------------------------------------------------------------------------------------------
async def _paced(items: Iterable[From], make: Callable[[From], To]) -> list[To]:
    """`make` of each item, with a turn for everything else after each slice of time."""
    made, end = [], time.perf_counter() + SLICE_SECONDS
    for item in items:
        made.append(make(item))
        if time.perf_counter() > end:
            await asyncio.sleep(0)
            end = time.perf_counter() + SLICE_SECONDS
    return made


async def _first(names: Sequence[str], count: int) -> list[str]:
    """The first `count` names in alphabetical order."""
    first: list[str] = []
    for start in range(0, len(names), MOST):
        first = sorted(first + list(names[start : start + MOST]))[:count]
        await asyncio.sleep(0)
    return first


# --- HTML -------------------------------------------------------------------------------------------------------------
async def render(shown: PageView) -> str:
    """The page for people."""
    trouble = f'<p class="bad">Only plans are checked now: {_(shown.trouble)}</p>' if shown.trouble else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Trimtab extender</title>'
        f"<style>{STYLE}</style></head><body><h1>What is planned where</h1>{trouble}"
        f"<h2>Gangs</h2>{await _gang_table(shown)}<h2>Nodes</h2>{await _node_table(shown)}</body></html>"
    )


async def _gang_table(shown: PageView) -> str:
    if not shown.gangs:
        return '<p class="dim">There is none.</p>'
    rows = await _paced(shown.gangs, _gang_row)
    head = '<tr><th>Gang</th><th class="number">Epoch</th><th class="number">Pods</th><th>State</th><th>Plan</th></tr>'
    return f"<table>{head}{''.join(rows)}</table>{_left_out(shown.gangs_left_out)}"


async def _node_table(shown: PageView) -> str:
    if not shown.nodes:
        return '<p class="dim">There is none with GPUs.</p>'
    rows = await _paced(shown.nodes, _node_row)
    head = (
        '<tr><th>Node</th><th>Type</th><th class="number">GPUs</th><th class="number">Held</th>'
        '<th class="number">Promised</th><th></th><th>Pods of gangs</th></tr>'
    )
    return f"<table>{head}{''.join(rows)}</table>{_left_out(shown.nodes_left_out)}"


def _gang_row(gang: GangRow) -> str:
    return (
        f'<tr><td><a href="?gang={_url(gang.name)}">{_(gang.name)}</a></td><td class="number">{_(gang.epoch)}</td>'
        f'<td class="number">{len(gang.members)}{f" of {gang.size}" if gang.size else ""}</td>'
        f"<td>{_(', '.join(f'{count} {state}' for state, count in gang.states.items()))}</td>"
        f"<td>{_(_places(gang.members))}</td></tr>"
    )


def _node_row(node: NodeRow) -> str:
    return (
        f"<tr><td>{_(node.name)}</td><td>{_(node.gpu_type)}</td>"
        f'<td class="number">{node.gpus}</td><td class="number">{node.held}</td><td class="number">{node.promised}</td>'
        f'<td class="bad">{_(node.unavailable)}</td><td>{"<br>".join(map(_, node.pods))}</td></tr>'
    )


def _places(members: Sequence[GangMember]) -> str:
    places = dict.fromkeys(member.node or "nowhere" for member in members)
    names = list(places)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _left_out(count: int) -> str:
    return f'<p class="dim">{count:,} more: ?limit=N shows N, at most 1,000.</p>' if count else ""


def _(text: str) -> str:
    return html.escape(printable(text), quote=True)


def _url(text: str) -> str:
    return _(quote(text, safe="/"))
