"""Policies, performance model and value types of Trimtab: pure, with no Kubernetes in sight."""
