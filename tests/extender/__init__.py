"""Tests of the scheduler extender; what they share is in `desk`."""
