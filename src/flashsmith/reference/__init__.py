"""The truth that kernels are checked against, and how a result is compared with it."""

from flashsmith.reference.attention import (
    attention_with_rounded_weights,
    lse_tolerance,
    reference_attention,
    reference_by_head,
    reference_lse,
    score_error,
)
from flashsmith.reference.compare import Comparison, compare, compare_lse

__all__ = [
    "Comparison",
    "attention_with_rounded_weights",
    "compare",
    "compare_lse",
    "lse_tolerance",
    "reference_attention",
    "reference_by_head",
    "reference_lse",
    "score_error",
]
