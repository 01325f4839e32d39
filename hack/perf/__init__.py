"""Tools around the performance model that only people who work on it need."""
