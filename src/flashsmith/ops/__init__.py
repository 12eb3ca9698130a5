"""The functions that users call on torch tensors: they check, choose a configuration, and launch.

- ``attention``: the best kernel for a problem
- ``forward``: the kernel of a configuration
- ``gate``: the checks of tensors before anything reads their memory
- ``operators``: ``attention`` as torch.compile and torch.export see it

Importing this package registers the operators with torch, so that programs saved by torch.export
can be loaded.
"""

from flashsmith.importing import no_collections

with no_collections():
    from flashsmith.ops import decode_operator, operators  # noqa: F401
