"""Fuzzing of all that strangers send: targets that bytes are fed to, by pytest a few and by `hack/fuzz` millions."""
