"""Trimtab on one machine: a control plane without containers, fake nodes, and the demo."""
