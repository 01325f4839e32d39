"""Policies that follow rules or solve a stated problem; one file each."""
