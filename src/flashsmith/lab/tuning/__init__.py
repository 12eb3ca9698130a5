"""Searches the configuration space on this GPU, and keeps the best kernels for each shape."""
