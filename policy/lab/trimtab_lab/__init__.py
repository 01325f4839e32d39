"""The research side of Trimtab: workloads, environments, learners, bounds, evaluations and benches."""
