"""Searching the configuration space on this GPU, and keeping what is best for each shape."""
