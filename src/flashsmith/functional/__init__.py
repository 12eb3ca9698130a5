"""The functions users call, on torch tensors: validate, select a configuration, launch."""

from flashsmith.functional.api import attention, forward
from flashsmith.functional.device import gpu_answers, target_of
from flashsmith.functional.select import select_config
from flashsmith.functional.served import gpus_with_tables, served_instances
from flashsmith.functional.workspace import workspace_for

__all__ = [
    "attention",
    "forward",
    "gpu_answers",
    "gpus_with_tables",
    "select_config",
    "served_instances",
    "target_of",
    "workspace_for",
]
