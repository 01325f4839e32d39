"""The demonstration: a whole control plane, a fake heterogeneous cluster, and the sample jobs, in half a minute."""
