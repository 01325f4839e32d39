"""The console in a terminal: GPUs, jobs, and why each is where it is. It reads, and changes nothing."""
