"""Snapshot -> Decision: run the named policy under a deadline, fall back when it fails, let the shield judge it."""
