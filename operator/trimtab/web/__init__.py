"""The console: a page that shows a cluster, its jobs and why each is where it is. A process that only reads."""
