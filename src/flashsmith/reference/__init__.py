"""The reference that kernels are checked against, and how a result is compared with it."""

from flashsmith.configs.features import former_names
from flashsmith.reference.attention import (
    attention_with_rounded_weights,
    lse_tolerance,
    reference_attention,
    reference_by_head,
    reference_lse,
)
from flashsmith.reference.compare import Comparison, compare, compare_lse
from flashsmith.reference.dropout import check_dropout, dropout_mask, dropout_scale
from flashsmith.reference.gradients import (
    ReferenceGradients,
    gradient_allowance,
    gradients_with_rounded_weights,
    reference_gradients,
)
from flashsmith.reference.packing import Packing, lse_shape, reference_varlen
from flashsmith.reference.scores import TANH_APPROX_ERROR, score_error, score_range
from flashsmith.reference.semantics import Semantics

__all__ = [
    "TANH_APPROX_ERROR",
    "Comparison",
    "Packing",
    "ReferenceGradients",
    "Semantics",
    "attention_with_rounded_weights",
    "check_dropout",
    "compare",
    "compare_lse",
    "dropout_mask",
    "dropout_scale",
    "gradient_allowance",
    "gradients_with_rounded_weights",
    "lse_shape",
    "lse_tolerance",
    "reference_attention",
    "reference_by_head",
    "reference_gradients",
    "reference_lse",
    "reference_varlen",
    "score_error",
    "score_range",
]

__getattr__ = former_names(globals(), Gradients="ReferenceGradients")
