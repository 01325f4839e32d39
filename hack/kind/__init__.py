"""Trimtab on kind, with real kubelets: a Docker daemon, images, a node image where none can be pulled, a cluster."""
