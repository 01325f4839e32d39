"""Training jobs of other kinds: their own controllers make the pods, Trimtab decides when and where they run."""
