"""Copy jitted kernels out of engines' source, and bind their arguments by name."""
