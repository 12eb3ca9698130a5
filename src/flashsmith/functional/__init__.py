"""The functions users call, on torch tensors: validate, select a configuration, launch."""

from flashsmith.functional.api import attention, forward
from flashsmith.functional.device import target_of
from flashsmith.functional.select import select_config
from flashsmith.functional.workspace import workspace_for

__all__ = ["attention", "forward", "select_config", "target_of", "workspace_for"]
