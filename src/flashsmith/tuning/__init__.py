"""Searching the configuration space on this GPU, and keeping what is best for each shape."""

from flashsmith.tuning.journal import Journal
from flashsmith.tuning.lab import KernelLab
from flashsmith.tuning.search import Lab, make_plan, search
from flashsmith.tuning.session import journal_path, tuning_session

__all__ = [
    "Journal",
    "KernelLab",
    "Lab",
    "journal_path",
    "make_plan",
    "search",
    "tuning_session",
]
