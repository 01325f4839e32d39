"""Rights: may whoever asks use this command line, and may the parts of Trimtab make the calls that they make?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from trimtab.doctor.findings import Finding, Reason, applied, count, error, not_checked, some, warning, well
from trimtab.doctor.inventory import AccessRight, InstalledPart, Seen, Unknown, known
from trimtab.doctor.rbac import Need, Right

MANIFESTS = {
    "controller": "rbac.yaml",
    "extender": "extender.yaml",
    "agent": "agent.yaml",
}


def own(seen: Seen) -> Iterator[Finding]:
    """What whoever asks may do."""
    grants = known(seen.own)
    lacking = _lacking(grants)
    for need, rights in lacking.items():
        message = f"you may not {_told(rights)}: {need.why}"
        yield warning(
            Reason.RIGHT_MISSING,
            message,
            "have them given to you: `trimtab doctor --roles-for USER | kubectl apply -f -`",
        )
    if not lacking:
        yield well("you may read all that `trimtab get`, `plan` and `explain` show")


def parts(seen: Seen) -> Iterator[Finding]:
    """What the service accounts may do, by the API server's own word."""
    led = isinstance(seen.lease, tuple) and any(look.holder for look in seen.lease)
    for part in known(seen.parts):
        yield from _part(part, led, seen)


def _part(part: InstalledPart, led: bool, seen: Seen) -> Iterator[Finding]:
    account = f"ServiceAccount/{part.namespace}/{part.account}"
    if isinstance(part.exists, Unknown):
        yield not_checked(f"{part.title}: service accounts: {part.exists.why}", part.exists.fix)
    elif not part.exists and part.title == "controller":
        who = "it acts as somebody else" if led else "it cannot run in the cluster"
        message = f"there is no service account {part.account} in {part.namespace} for the controller: {who}"
        yield warning(Reason.ACCOUNT_MISSING, message, applied(MANIFESTS[part.title]), (account,))
    elif not part.exists:
        yield well(f"{part.title}: not installed")
    elif isinstance(part.grants, Unknown):
        yield not_checked(f"{part.title}: what {part.account} may do: {part.grants.why}", part.grants.fix)
    else:
        yield from _granted(
            part, tuple(grant for grant in part.grants if _needed(grant.need, part.title, seen)), account
        )


def _needed(need: Need, title: str, seen: Seen) -> bool:
    """Whether a part, as its pods are set, makes such calls: the chart gives it no right beyond."""
    pods = seen.pods if isinstance(seen.pods, tuple) else ()
    return need.used({pod.variable(need.setting[0]) for pod in pods if pod.part == title} - {""})


def _granted(part: InstalledPart, grants: tuple[AccessRight, ...], account: str) -> Iterator[Finding]:
    lacking = _lacking(grants)
    for need, rights in lacking.items():
        message = f"{part.account} may not {_told(rights)}: {need.why}"
        fix = f"{applied(MANIFESTS[part.title])} (where Helm installed it: helm upgrade)"
        if need.role:
            fix = f"helm upgrade with rbac.create, or bind a ClusterRole like the chart's {need.role} to it"
        say = warning if need.optional else error
        yield say(Reason.RIGHT_MISSING, message, fix, (account,))
    if not lacking:
        yield well(f"{part.title}: {part.account} has its {count(len(grants), 'right')}")


def _lacking(grants: Iterable[AccessRight]) -> dict[Need, list[Right]]:
    """Needs that are not wholly met, with the rights that are missing."""
    found: dict[Need, list[Right]] = defaultdict(list)
    for grant in grants:
        if not grant.allowed:
            found[grant.need].append(grant.right)
    return found


def _told(rights: list[Right]) -> str:
    return some([right.told() for right in rights], 4)
