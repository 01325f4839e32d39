"""What a job says about its accelerators -> types of the catalogue. A name that several share is all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trimtab import names
from trimtab.foreign.tables import hardware
from trimtab_policy import catalog

_TYPE_WORD = re.compile(r"[A-Za-z0-9]+")


def of_text(text: str) -> str:
    """The type or family that a text names, in the catalogue's spelling; the text itself where it names none."""
    known = hardware()
    if found := known.products.get(text.casefold()):
        return found
    if family := next((each for each in known.families if each.casefold() == text.casefold()), ""):
        return family
    if found_type := catalog.by_product(text):
        return found_type.name
    if catalog.is_known(text):
        return catalog.gpu(text).name
    words = {word.casefold() for word in _TYPE_WORD.findall(text[:200])}
    return next((family for family in known.families if family.casefold() in words), text)


def of_instance(text: str) -> str:
    """The type in machines of this name; empty where they are not known."""
    begins = [each for each in hardware().instances if text.casefold().startswith(each)]
    return hardware().instances[max(begins, key=len)] if begins else ""


def in_name(text: str) -> str:
    """The family that the name of a job has as a word of its own; short ones (`L4`, `T4`) may be anything."""
    words = {word.casefold() for word in _TYPE_WORD.findall(text[:200])}
    return next((each for each in hardware().families if len(each) > 3 and each.casefold() in words), "")


def catalogued(text: str) -> tuple[str, ...]:
    """The catalogue's types that a type or a family stands for; none where it has none of them."""
    return tuple(spec.name for spec in catalog.named(of_text(text)))


def unsupported(text: str) -> str:
    """What an accelerator is called that Trimtab does not plan for; empty for all others."""
    low = text.casefold()
    return next((called for begins, called in hardware().unsupported.items() if low.startswith(begins.casefold())), "")


def is_unsupported(text: str) -> bool:
    """Whether a type is one that Trimtab does not plan for, by its name or by what it is called in messages."""
    return bool(unsupported(text)) or text in hardware().unsupported.values()


def is_accelerator(resource: str) -> bool:
    """Whether a resource of a pod is an accelerator, of any vendor."""
    return resource.startswith(names.ACCELERATORS) and not resource.startswith("nvidia.com/gpu.")


def of_pod(spec: dict[str, Any]) -> tuple[str, str]:
    """The type that a pod's node selector or required affinity asks for, and where; both empty if nowhere."""
    for key, value, where in _asked(spec):
        if key in hardware().product_labels:
            return of_text(value), where
        if key in hardware().instance_labels and (found := of_instance(value)):
            return found, f"{where} ({value})"
    return "", ""


def _asked(spec: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    selector = spec.get("nodeSelector")
    for key, value in selector.items() if isinstance(selector, dict) else ():
        yield str(key), str(value), f"nodeSelector {key}"
    part: Any = spec.get("affinity")
    for step in ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"):
        part = part.get(step) if isinstance(part, dict) else None
    terms = part if isinstance(part, list) else []
    for term in terms[:16] if len(terms) == 1 else []:
        expressions = term.get("matchExpressions") if isinstance(term, dict) else None
        for each in expressions[:64] if isinstance(expressions, list) else []:
            values = each.get("values") if isinstance(each, dict) and each.get("operator") == "In" else None
            if isinstance(values, list) and len(values) == 1:
                yield str(each.get("key")), str(values[0]), f"node affinity {each.get('key')}"
