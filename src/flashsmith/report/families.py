"""The families that the report knows, by their names."""

from __future__ import annotations

from typing import Any

from flashsmith.configs import ForwardKernelConfig
from flashsmith.report.family import Family
from flashsmith.report.results import Time
from flashsmith.report.sm80 import Sm80
from flashsmith.report.sm90 import Sm90

FAMILIES: dict[str, Family[Any]] = {family.name: family for family in (Sm80(), Sm90())}


def family_of(config: ForwardKernelConfig) -> Family[Any]:
    return FAMILIES[config.family]


def family_of_time(time: Time) -> Family[Any] | None:
    """None of a peer."""
    return None if isinstance(time.candidate, str) else family_of(time.candidate.config)
