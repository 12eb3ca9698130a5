"""The functions users call, on torch tensors: check, choose a configuration, launch.

- ``attention``: the best kernel for a problem
- ``forward``: the kernel of a configuration
- ``gate``: what every call asks of its tensors before anything reads their memory
- ``operators``: ``attention`` as torch.compile and torch.export see it

Importing this package registers the operators with torch, so that it can load a program that
torch.export saved.
"""

from flashsmith.ops import decode_operator, operators  # noqa: F401
