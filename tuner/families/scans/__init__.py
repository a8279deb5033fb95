"""What families of chunked scans share: chains of kernels that engines tune themselves."""
