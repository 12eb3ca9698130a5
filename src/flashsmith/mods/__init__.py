"""Traces a user's score_mod and mask_mod, plain Python functions, once, and generates C++.

Importing this package loads the standard library alone; ``trace`` and the modules on top of it load
torch.
"""

from flashsmith.mods.expression import Buffer, Expression, Node
from flashsmith.mods.operations import OPERATIONS, Kind

__all__ = ["OPERATIONS", "Buffer", "Expression", "Kind", "Node"]
