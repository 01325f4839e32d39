"""The checks, one file a group: pure functions from what was seen to findings. None of them finds nothing to say:
where all is well, that is said in one sentence."""
