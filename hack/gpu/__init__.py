"""What only a real GPU can say: readings, step times and memory, held against what Trimtab says of them."""
