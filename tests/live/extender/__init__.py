"""Extender binding, proven with the real kube-scheduler."""
