"""Linear, integer and conic programs of the optimising policies."""
