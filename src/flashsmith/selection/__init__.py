"""Chooses the kernel for a problem when the caller names none: tuned tables, then a heuristic.

``select`` chooses for tensors, and loads torch; ``choose`` chooses for workloads, and does not.
"""
