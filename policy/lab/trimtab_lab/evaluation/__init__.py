"""Policies compared: which runs, carried out where, kept how, and what their results say together."""
