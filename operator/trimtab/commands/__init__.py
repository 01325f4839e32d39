"""What `trimtab` does on the command line, one file per command; `trimtab.cli` only mounts them."""
