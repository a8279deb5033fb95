"""Code that all families of chunked scans use: chains of kernels that engines tune themselves."""
