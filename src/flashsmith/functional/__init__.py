"""The functions users call, on torch tensors: validate, select a configuration, launch."""

from flashsmith.functional.attention import attention, select_config
from flashsmith.functional.forward import forward, target_of

__all__ = ["attention", "forward", "select_config", "target_of"]
