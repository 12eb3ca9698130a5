"""Kernels built, run, checked and timed as the commands ask; says nothing itself.

torch is loaded by the modules of the commands, and not by ``request``, ``kernel_words``,
``files``, ``driver``, ``reporter`` and ``build``.
"""
