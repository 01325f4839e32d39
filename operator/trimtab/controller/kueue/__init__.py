"""Jobs that Kueue admits."""
