"""Raw objects -> Snapshot. Pure: what is malformed becomes a `Problem`, never an exception and never silence."""
