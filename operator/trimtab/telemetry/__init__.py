"""What Trimtab tells about itself: structured logs, Prometheus metrics, health."""
