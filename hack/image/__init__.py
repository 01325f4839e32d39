"""What the Dockerfile runs while it builds an image."""
