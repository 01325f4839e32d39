"""What learned policies see of a cluster and of its jobs: bounded numbers without units, each with its meaning."""
