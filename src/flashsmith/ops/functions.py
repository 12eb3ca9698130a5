"""A call's score_mod, mask_mod and block_mask, which are traced to values when the call is made."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from flashsmith.mods.block_mask import LISTS, BlockMask
from flashsmith.mods.registry import remember
from flashsmith.mods.trace import MaskMod, ScoreMod, trace
from flashsmith.ops.checks import check_block_mask
from flashsmith.ops.gate import refuse_unknown

FUNCTIONS = ("score_mod", "mask_mod", "block_mask")  # keywords of attention


class Functions(NamedTuple):
    """The traced score_mod and mask_mod of a caller; ``CallArgs`` has the same fields."""

    mod_tensors: list[torch.Tensor] | None = None
    score: int = 0

    @classmethod
    def traced(
        cls, score_mod: ScoreMod | None, mask_mod: MaskMod | None, device: torch.device
    ) -> Functions:
        """Returns the traced functions; each call traces them, because captured values may have
        changed.

        Raises:
            TracingError, TypeError: See ``trace``.
        """
        mods = trace(score_mod, mask_mod, device)
        return cls(list(mods.buffers) or None, remember(mods.expression))


NO_FUNCTIONS = Functions()


def traced_functions(
    q: torch.Tensor,
    k: torch.Tensor,
    is_packed: bool,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    block_mask: BlockMask | Any | None,
) -> dict[str, Any]:
    """Returns the fields of ``AttentionSpec`` for a call's functions: score, mod_tensors,
    key_ranges and rows_per_range, without those at their defaults.

    The functions are called here, once, and never again: a call's gradients belong to its forward's
    computation, whatever the functions would do later.

    Raises:
        TracingError, TypeError: See ``trace``.
        ValueError: block_mask is for other shapes.
    """
    found: dict[str, Any] = {}
    if block_mask is not None:
        block_mask = BlockMask.of(block_mask)
        check_block_mask(block_mask, q, k, is_packed)
        refuse_unknown(q=q, **{name: getattr(block_mask, name) for name in LISTS})
        try:
            mask_mod, key_ranges = block_mask.read(mask_mod)
        except (AssertionError, RuntimeError) as error:  # the lists have no memory
            reason = str(error).partition("\n")[0]
            raise TypeError(f"block_mask has lists that cannot be read: {reason}") from error
        found |= {"key_ranges": key_ranges, "rows_per_range": block_mask.block_size[0]}
    if score_mod is not None or mask_mod is not None:
        found |= Functions.traced(score_mod, mask_mod, q.device)._asdict()
    return found
