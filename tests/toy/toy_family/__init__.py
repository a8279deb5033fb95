"""A family of kernels that exists in the tests alone: rows of numbers, each times a factor."""
