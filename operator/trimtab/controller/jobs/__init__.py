"""What becomes of jobs: their gangs start, give way and stop, and it is told."""
