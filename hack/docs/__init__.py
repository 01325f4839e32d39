"""The documentation: what is generated of it, and the site that is built from it."""
