"""Advice on training jobs of other kinds: what Trimtab would decide about them, said and not done."""
