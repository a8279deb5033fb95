"""What is tuned, and what came of it. Sizes are counts of elements, not bytes."""
