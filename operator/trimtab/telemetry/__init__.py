"""What the outside can measure and read: metrics and logs."""
