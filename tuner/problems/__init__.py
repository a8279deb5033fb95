"""Define problems and the results of tuning them. Sizes are counts of elements, not bytes."""
