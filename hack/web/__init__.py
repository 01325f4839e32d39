"""What is made for the console and its documentation."""
