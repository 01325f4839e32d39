"""Learners, one algorithm a file; what they learn is used by the policies of `trimtab_policy.learned`."""
