"""What comes from files: YAML as text, snapshots that are to be reckoned with, changes to them."""
