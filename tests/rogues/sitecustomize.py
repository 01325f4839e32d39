"""Registers the rogue policies in every Python that starts with this directory in PYTHONPATH: controllers under test,
and the processes that those start in turn.
"""

from trimtab_policy.policy import _POLICIES, Entry, Kind

_POLICIES |= {
    f"rogue_{name.lower()}": Entry(f"rogues:{name}", Kind.LEARNED, "tests")
    for name in ("Crash", "Raise", "Nan", "Late", "Frozen", "Greedy", "Missing", "Chatty", "Slow")
}
