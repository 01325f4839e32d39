"""Policies that were learned: numpy and shipped weights, nothing that training needs."""
