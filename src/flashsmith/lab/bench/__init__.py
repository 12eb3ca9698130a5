"""Measuring kernels on a GPU: checks, timers, peers, the stamp of where a number comes from."""
