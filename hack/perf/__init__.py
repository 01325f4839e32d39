"""The performance model against its goals: every figure, measured by one command."""
