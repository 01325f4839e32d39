"""Extender binding: the second kube-scheduler, how it is set, and the extender that it asks. Says nothing where the
controller binds pods itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trimtab import names
from trimtab.doctor.findings import Finding, Reason, count, error, not_checked, some, warning, well
from trimtab.doctor.inventory import Lease, Pod, Seen, Unknown, known, posix
from trimtab.doctor.rbac import BINDING_MODE
from trimtab.errors import SettingsError
from trimtab.extender.config import ExtenderTls, scheduler_configuration
from trimtab.ui.words import duration
from trimtab_policy.inputs import documents

UNSEEN_SECONDS = 30.0
"""kube-scheduler says within a second what it thinks of a pod; a busy one within some."""
CERTIFICATE_SECONDS = 14 * 86_400.0
"""Left of a certificate's life when it is time to hear of it; cert-manager renews 30 days before the end."""
KEY, SHARE = "scheduler.yaml", "percentageOfNodesToScore"
UNUSED = "not used: the controller binds pods itself"


def used(seen: Seen) -> bool:
    """Whether anything speaks of Extender binding: a setting, pods of ours, a scheduler, gangs that wait for one."""
    ours = seen.pods if isinstance(seen.pods, tuple) else ()
    gangs = seen.gang_pods if isinstance(seen.gang_pods, tuple) else ()
    return (
        seen.settings.binding.mode == "Extender"
        or any(pod.variable(BINDING_MODE) == "Extender" or pod.part in ("extender", "scheduler") for pod in ours)
        or any(names.ANNOTATION_BINDING in pod.metadata.annotations for pod in gangs)
        or isinstance(seen.scheduler_lease, Lease)
        or isinstance(seen.scheduler, Mapping)
    )


def extender(seen: Seen) -> Iterator[Finding]:
    """Whether the extender answers: its pods by their readiness, and kube-scheduler by what it says of pods."""
    if not used(seen):
        yield well(UNUSED)
        return
    failed = [told for pod in known(seen.gang_pods) if (told := _complaint(pod))]
    if failed:
        message = f"kube-scheduler gets no answer from the extender ({count(len(failed), 'pod')}): {failed[0]}"
        yield error(
            Reason.EXTENDER_UNANSWERED, message, "see the extender's Service, its NetworkPolicy and its certificate"
        )
        return
    pods = seen.of("extender")
    ready = [pod for pod in pods if pod.ready]
    if pods and not ready:
        message = f"none of {count(len(pods), 'pod')} of the extender is ready: no gang is scheduled"
        fix = f"kubectl -n {pods[0].metadata.namespace} logs -l {names.LABEL_PART}={names.EXTENDER_ACCOUNT}"
        yield error(Reason.EXTENDER_ABSENT, message, fix, [f"Pod/{pod.metadata.key}" for pod in pods])
    elif not pods:
        yield not_checked("the extender is no pod of this cluster", "its page /readyz, and `trimtab extender`")
    else:
        yield well(f"{len(ready)} of {count(len(pods), 'pod')} of the extender ready")


def scheduler(seen: Seen) -> Iterator[Finding]:
    """Whether a kube-scheduler looks at our pods."""
    if not used(seen):
        yield well(UNUSED)
        return
    profile = seen.settings.binding.scheduler_name
    ours = [pod for pod in known(seen.gang_pods) if names.ANNOTATION_BINDING in pod.metadata.annotations]
    waiting = [pod for pod in ours if not pod.spec.node_name and not pod.spec.scheduling_gates]
    ignored = [pod for pod in waiting if _unseen(pod, seen.now)]
    start = (
        "kubectl apply -f manifests/scheduler.yaml, and see the logs of its pods; its version is the control plane's"
    )
    if ignored:
        about = sorted(pod.metadata.key for pod in ignored)
        message = f"no kube-scheduler has looked at {some(about)} (schedulerName {profile})"
        yield error(Reason.SCHEDULER_ABSENT, message, start, [f"Pod/{key}" for key in about])
        return
    lease = known(seen.scheduler_lease)
    if lease is None:
        if any(pod.spec.node_name for pod in ours):
            yield well(f"pods with schedulerName {profile} are bound")
        else:
            yield not_checked(f"no Lease {names.SCHEDULER_ACCOUNT} and no pod that waits", "a job, and a second look")
        return
    age = lease.age(seen.now)
    if not lease.holder or age is None or age > lease.seconds:
        since = f"for {duration(age)}" if age is not None else "ever"
        yield error(Reason.SCHEDULER_ABSENT, f"no second kube-scheduler runs: its Lease was not renewed {since}", start)
        return
    yield well(f"{lease.holder} schedules pods with schedulerName {profile}")


def configuration(seen: Seen) -> Iterator[Finding]:
    """Whether the second kube-scheduler is set as is safe: `trimtab.extender.config` says what each field is for."""
    if not used(seen):
        yield well(UNUSED)
        return
    data = known(seen.scheduler)
    if data is None:
        yield not_checked(
            f"no ConfigMap {names.SCHEDULER_ACCOUNT} in {seen.namespace}",
            "its file, held against manifests/scheduler.yaml",
        )
        return
    about = (f"ConfigMap/{seen.namespace}/{names.SCHEDULER_ACCOUNT}",)
    wrong = _misconfigured(data.get(KEY, ""), seen.settings.binding.scheduler_name)
    if wrong:
        message = f"the second kube-scheduler is not set as is safe: {some(wrong, 5)}"
        fix = "kubectl apply -f manifests/scheduler.yaml, then restart the scheduler"
        yield error(Reason.SCHEDULER_MISCONFIGURED, message, fix, about)
    else:
        yield well("set as manifests/scheduler.yaml has it, in all that is safety")


def certificates(seen: Seen) -> Iterator[Finding]:
    """When the certificates of the extender and its scheduler end."""
    if not used(seen):
        yield well(UNUSED)
        return
    found = known(seen.certificates)
    if not found:
        there = " and ".join(names.EXTENDER_SECRETS)
        yield not_checked(f"no Secret {there} in {seen.namespace}", "the certificates where they are, by hand")
    ends: dict[str, float] = {}
    for name, pem in found.items():
        end = _end(pem)
        if isinstance(end, Unknown):
            yield not_checked(f"Secret {name}: {end.why}", end.fix)
        else:
            ends[name] = end
    for name, end in ends.items():
        left, about = end - seen.now, (f"Secret/{seen.namespace}/{name}",)
        fix = f"renew what is in Secret {name} in {seen.namespace} (cert-manager does it by itself)"
        fix += "; kube-scheduler reads its own once: restart it" if name == names.EXTENDER_SECRETS[1] else ""
        if left <= 0:
            yield error(Reason.CERTIFICATE_ENDED, f"the certificate in {name} ended {duration(-left)} ago", fix, about)
        elif left < CERTIFICATE_SECONDS:
            yield warning(Reason.CERTIFICATE_ENDS, f"the certificate in {name} ends in {duration(left)}", fix, about)
        else:
            yield well(f"the certificate in {name} is good for {duration(left)}")


def _unseen(pod: Pod, now: float) -> bool:
    made = posix(pod.metadata.creation_timestamp)
    said = any(told.type == "PodScheduled" for told in pod.status.conditions)
    return not said and made is not None and now - made > UNSEEN_SECONDS


def _complaint(pod: Pod) -> str:
    """What kube-scheduler says of a call that failed; empty where none did. It quotes Go's client: `Post "https://...`."""
    told = (each.message for each in pod.status.conditions if each.type == "PodScheduled" and each.status == "False")
    return next((message for message in told if 'Post "http' in message), "")


def _misconfigured(text: str, profile: str) -> list[str]:
    """Fields that are not as the generator would have them, given what is up to whoever installs it."""
    try:
        told: dict[str, Any] = documents.parse(text)
        (theirs,) = told["extenders"]
        beside = [each["schedulerName"] for each in told["profiles"] if each["schedulerName"] != profile]
        files = theirs.get("tlsConfig") or {}
        tls = (
            ExtenderTls(files.get("caFile", ""), files.get("certFile", ""), files.get("keyFile", "")) if files else None
        )
        wanted = scheduler_configuration(theirs["urlPrefix"], tls=tls, scheduler_name=profile, beside=beside)
        ours = next((each for each in told["profiles"] if each["schedulerName"] == profile), None)
    except SettingsError as refused:
        return [str(refused)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"{KEY} is no KubeSchedulerConfiguration with one extender ({type(error).__name__}: {error})"]
    (mine,) = wanted["extenders"]
    fields = ("filterVerb", "preemptVerb", "enableHTTPS", "nodeCacheCapable", "ignorable", "managedResources")
    wrong = [f"extenders[0].{field} is {theirs.get(field)!r}" for field in fields if theirs.get(field) != mine[field]]
    if ours is None:
        return [*wrong, f"no profile {profile}"]
    share = ours.get(SHARE, told.get(SHARE))  # the profile's goes before the one of all
    if share != wanted["profiles"][0][SHARE]:
        wrong.append(f"{SHARE} of profile {profile} is {share!r}")
    if (ours.get("plugins") or {}).get("postFilter") != wanted["profiles"][0]["plugins"]["postFilter"]:
        wrong.append(f"profile {profile} has postFilter plugins: it kills pods of others")
    return wrong


def _end(pem: bytes) -> float | Unknown:
    """When a certificate ends, in POSIX seconds."""
    try:
        from cryptography import x509  # of the extra `local`; the operator's image does without
    except ImportError:
        return Unknown("reading certificates needs the library cryptography", "pip install 'trimtab[local]'")
    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except ValueError as error:
        return Unknown(f"tls.crt is no certificate: {error}", "make the Secret anew")
