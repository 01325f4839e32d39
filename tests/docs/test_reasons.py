"""Every word that a status, a condition or an event gives as its reason is explained, under an anchor of its own."""

from __future__ import annotations

import re

import pytest

from trimtab import names
from trimtab.api import conditions
from trimtab.api.history import FailureCause
from trimtab_local.checkout import checkout
from trimtab_policy.types import NEVER_STARTS, PendingReason, StopCause

PAGE = (checkout() / "docs" / "troubleshooting" / "reasons.md").read_text()
SECTIONS = re.findall(r"^### (\w+)\n\n(.*?)(?=\n##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
TEXTS = dict(SECTIONS)
KNOWN = {
    *(each.value for kind in (PendingReason, StopCause, FailureCause) for each in kind),
    *(value for name, value in vars(names).items() if name.startswith("REASON_")),
    *(reason for reason, _ in conditions.AT_FIRST.values()),
}


def test_no_reason_is_missing_and_none_is_there_twice() -> None:
    assert len(SECTIONS) == len(TEXTS), "an anchor leads to one place"
    assert set(TEXTS) == KNOWN


@pytest.mark.parametrize("reason", sorted(KNOWN))
def test_a_reason_is_explained_in_a_sentence(reason: str) -> None:
    assert len(TEXTS[reason].split()) > 3
    assert ("never starts as it is" in TEXTS[reason]) == (reason in {each.value for each in NEVER_STARTS})
