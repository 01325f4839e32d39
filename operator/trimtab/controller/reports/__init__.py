"""What running trainings say, whose word it is, and what is learned from it."""
