"""MiniMax-M3's sparse attention: the kernels of its layers over prompts."""
