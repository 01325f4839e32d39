"""Listening for strangers: what every port of Trimtab has in common, whatever it answers."""
