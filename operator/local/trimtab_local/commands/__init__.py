"""Commands of `trimtab` that run a cluster of their own, one file per command; found by their entry points."""
