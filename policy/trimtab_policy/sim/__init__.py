"""A simulator of GPU clusters: the same snapshots and decisions as the live controller, many thousand times faster."""
