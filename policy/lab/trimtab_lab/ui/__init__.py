"""What people look at while something is trained, evaluated or measured."""
