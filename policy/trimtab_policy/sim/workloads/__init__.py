"""Workloads: what was submitted when, read from published traces, cut out of them, or generated."""
