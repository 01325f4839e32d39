"""Which policies decide, as one value."""

from __future__ import annotations

from msgspec import Struct

from trimtab_policy.policy import Kind, UnknownPolicy, entry

LONGEST_DEADLINE = 30.0
"""Seconds. A round in which two new policies are loaded, and are late, ends before it counts as stuck (180 s). Jobs
that name policies of their own, for tests, add a deadline each."""


class Choice(Struct, frozen=True):
    """Who decides, and how long they may take."""

    policy: str
    fallback: str
    """Answers when the policy fails or is late."""
    shadow: str = ""
    """Is asked, too, and only watched; empty for none."""
    deadline_seconds: float = 2.0

    def roles(self) -> dict[str, str]:
        """Role -> name of the policy that has it."""
        named = {"policy": self.policy, "fallback": self.fallback, "shadow": self.shadow}
        return {role: name for role, name in named.items() if name}

    def check(self) -> None:
        """Raise UnknownPolicy unless all names are registered, and the fallback one that can be relied on."""
        for name in self.roles().values():
            entry(name)
        check_fallback(self.fallback)

    def describe(self) -> str:
        """`best_fit decides within 2 s, else fcfs; shadow: sia`."""
        shadow = f"; shadow: {self.shadow}" if self.shadow else ""
        return f"{self.policy} decides within {self.deadline_seconds:g} s, else {self.fallback}{shadow}"


def check_fallback(name: str) -> None:
    """Who has to answer when a policy fails must not be able to fail for want of weights. Raises UnknownPolicy."""
    if entry(name).kind is Kind.LEARNED:
        raise UnknownPolicy(f"{name} is learned and may fail itself; fall back on a rule such as fcfs or best_fit")
