"""The score_mod and mask_mod of soak cases."""

from __future__ import annotations

import functools
from typing import Any

import torch

from flashsmith.mods.trace import MaskMod, ScoreMod
from flashsmith.ops.functions import Functions


def functions_of(moduli: torch.Tensor) -> tuple[ScoreMod, MaskMod]:
    """Returns functions that depend on batch, head, query and key, and add no error to a score.

    moduli: (batch,), int32; 1 hides all keys.
    """

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where((kv_idx + q_idx + h) % 3 == 0, score * 0.5, score)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx + 3 * q_idx + 5 * h) % moduli[b] != 0

    return score_mod, mask_mod


@functools.cache
def number_of_functions() -> int:
    """Returns the number of kernels with these functions, which does not depend on the moduli."""
    any_moduli = torch.ones(1, dtype=torch.int32)
    return Functions.traced(*functions_of(any_moduli), any_moduli.device).score
