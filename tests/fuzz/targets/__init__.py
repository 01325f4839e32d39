"""One module for each target: how bytes become its input, and what must hold of the answer."""
