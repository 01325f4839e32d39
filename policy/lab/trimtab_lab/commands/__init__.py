"""Commands of `trimtab` that need the research side, one file per command; found by their entry points."""
