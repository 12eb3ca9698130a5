"""What two configurations of a family differ in."""

from __future__ import annotations

from dataclasses import fields

from flashsmith.configs import ForwardKernelConfig
from flashsmith.report.family import value_text


def changed_fields(a: ForwardKernelConfig, b: ForwardKernelConfig) -> list[str]:
    """`swizzled off to on`, for every field in which two of a family differ."""
    return [
        f"{each.name} {value_text(getattr(a, each.name))} to {value_text(getattr(b, each.name))}"
        for each in fields(a)
        if getattr(a, each.name) != getattr(b, each.name)
    ]
