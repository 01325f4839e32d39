"""The fault matrix: what may break, is broken, and what must hold all the same. `hack/faults --help` runs all of it."""
