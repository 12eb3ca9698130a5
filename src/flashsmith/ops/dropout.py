"""The state of a call's dropout, from torch's generators."""

from __future__ import annotations

from typing import Any

import torch

from flashsmith.reference.dropout import check_dropout

_STATES = 1 << 62  # number of seeds, and of offsets


def dropout_keywords(
    q: torch.Tensor, dropout_p: float, rng_state: torch.Tensor | None
) -> dict[str, Any]:
    """Returns the keywords of a call that drops weights.

    Without a state, a new one is drawn from the generator of q's device, by one small kernel on its
    stream: ``torch.manual_seed`` seeds it, and a CUDA graph draws another state at every replay.
    """
    check_dropout(dropout_p)
    if rng_state is None and isinstance(q, torch.Tensor):
        rng_state = torch.randint(_STATES, (2,), device=q.device)
    return {"dropout_p": dropout_p, "rng_state": rng_state}
