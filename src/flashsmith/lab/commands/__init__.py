"""Builds, runs, checks and times kernels for the commands; prints nothing itself.

The modules of the commands load torch; ``request``, ``kernel_words``, ``files``, ``driver``,
``reporter`` and ``build`` do not.
"""
