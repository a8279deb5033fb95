"""What each engine does with each family of kernels: its kernels, files, plugin and delivery."""
