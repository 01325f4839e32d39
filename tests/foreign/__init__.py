"""Training jobs of other kinds: how they are read, judged and converted."""
