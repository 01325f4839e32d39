"""Fake GPU nodes: Node objects as real device plugins and labellers leave them, kept Ready by KWOK."""
