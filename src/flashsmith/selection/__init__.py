"""Which kernel serves a problem where the caller names none: tuned tables, then a rule."""

from flashsmith.selection.choose import select_config
from flashsmith.selection.served import gpus_with_tables, served_instances

__all__ = ["gpus_with_tables", "select_config", "served_instances"]
