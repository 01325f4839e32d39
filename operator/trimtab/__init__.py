"""Trimtab's Kubernetes side: observe the cluster, decide, plan, apply."""

from importlib.metadata import version

__version__ = version("trimtab")
