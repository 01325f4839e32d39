"""Plan × live objects -> writes: first what to do next (pure), then doing it (idempotent)."""
